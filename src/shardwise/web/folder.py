"""The planner as a folder of files: pages, Pyodide, and the packages that a worker runs"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath

import shardwise
from shardwise.errors import InputError
from shardwise.web.model_choices import Models
from shardwise.web.pages import EXPORTED, OF_FOLDER, OWN, SHARED, Pages, static_file

#: Python for browsers, as npm has it, and what of its package starts it.
PYODIDE = "pyodide@314.0.7"
_OF_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
#: What is built for this Python, as PyPI has it, and what is taken as it is installed here.
WHEELS = ("pydantic==2.14.4", "pydantic_core==2.50.5")
_BUILT_FOR = {
    "platform": "pyemscripten_2026_0_wasm32",
    "python-version": "3.14",
    "implementation": "cp",
    "abi": "cp314",
}
INSTALLED = ("annotated-types", "jinja2", "markupsafe", "ruamel.yaml", "typing-extensions", "typing-inspection")
#: Packages of Shardwise that plan and show plans.
PARTS = ("api", "catalog", "interop", "launch", "plan", "report", "spec", "web")
#: What of wheels no plan needs.
_LEFT_OUT = ("pydantic/v1/", "pydantic/mypy.py")
ARCHIVE, WORKER = "packages.zip", "sw.js"
LONGEST = 300  # seconds for npm or pip


def export(folder: Path, *, told: Callable[[str], None]) -> None:
    """Makes the folder, or makes it anew. Raises InputError: there is something else in it, it
    cannot be written, or Pyodide or a wheel cannot be fetched."""
    if folder.exists() and not (folder.is_dir() and ((folder / ARCHIVE).is_file() or not any(folder.iterdir()))):
        raise InputError(f"{folder} exists and is no folder that `shardwise serve --export` made; name another")
    with tempfile.TemporaryDirectory(prefix="shardwise-export-") as temporary:
        made = Path(temporary) / "planner"
        _fill(made, fetched=Path(temporary))
        size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
        try:
            if folder.exists():
                shutil.rmtree(folder)
            shutil.copytree(made, folder)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}; name another folder") from None
    told(f"{folder} has the planner, {size / 1e6:.1f} MB: any web server serves it, such as")
    told(f"  python -m http.server -d {folder}")


def _fill(folder: Path, *, fetched: Path) -> None:
    pages = Pages(Models(None), at=EXPORTED)
    (folder / "static").mkdir(parents=True)
    for name, page in ((EXPORTED["plan"], pages.ask({})), (EXPORTED["learn"], pages.learn({}))):
        (folder / name).write_text(page.text, encoding="utf-8")
    for name in (*SHARED, *OWN, *OF_FOLDER[:2]):
        (folder / "static" / name).write_text(static_file(name) or "", encoding="utf-8")
    _take_pyodide(folder / "pyodide", fetched=fetched)
    _pack(folder / ARCHIVE, fetched=fetched)
    compiling = str(files("shardwise.web") / "static/compile.mjs")
    _run([_tool("node"), compiling, str(folder / "pyodide"), str(folder / ARCHIVE)], what="what Pyodide compiles")
    listed = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in listed)).hexdigest()[:16]
    head = f"const FILES = {json.dumps(listed)}, VERSION = {json.dumps(digest)};\n"
    (folder / WORKER).write_text(head + (static_file(WORKER) or ""), encoding="utf-8")


def _take_pyodide(folder: Path, *, fetched: Path) -> None:
    _run([_tool("npm"), "pack", PYODIDE, "--silent", "--pack-destination", str(fetched)], what=PYODIDE)
    folder.mkdir()
    with tarfile.open(next(fetched.glob("pyodide-*.tgz"))) as archive:
        for name in _OF_PYODIDE:
            file = archive.extractfile(f"package/{name}")
            (folder / name).write_bytes(b"" if file is None else file.read())


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise InputError(f"{name} is not installed; `shardwise serve --export` needs Node.js and its npm: install them")
    return found


def _pack(target: Path, *, fetched: Path) -> None:
    options = [word for name, value in _BUILT_FOR.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*command, "--only-binary=:all:", *options, "--dest", str(fetched), *WHEELS], what=" and ".join(WHEELS))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for wheel in sorted(fetched.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                for name in packed.namelist():
                    if not name.startswith(_LEFT_OUT):
                        archive.writestr(_entry(name), packed.read(name))
        for name, content in (*_installed(), *_own()):
            archive.writestr(_entry(name), content)


def _entry(name: str) -> zipfile.ZipInfo:
    """Without a time, so that the same files make the same archive."""
    made = zipfile.ZipInfo(name)
    made.compress_type = zipfile.ZIP_DEFLATED
    return made


def _installed() -> Iterator[tuple[str, bytes]]:
    for package in INSTALLED:
        found: Distribution = distribution(package)
        for file in sorted(found.files or (), key=str):
            name = PurePosixPath(file)
            is_said = name.parent.name.endswith(".dist-info") and name.name == "METADATA"
            if name.suffix == ".py" or is_said or "license" in str(name).lower():
                yield str(name), Path(str(found.locate_file(file))).read_bytes()


def _own() -> Iterator[tuple[str, bytes]]:
    root = Path(str(files(shardwise)))
    for file in sorted(root.rglob("*")):
        name = file.relative_to(root)
        is_part = len(name.parts) == 1 or name.parts[0] in PARTS
        if is_part and file.is_file() and file.suffix != ".pyc":
            yield f"shardwise/{name.as_posix()}", file.read_bytes()


def _run(command: list[str], *, what: str) -> None:
    """Raises InputError, with what the command said last."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{what} could not be made ready: {error}") from None
    if done.returncode != 0:
        said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()] or ["no reason given"]
        raise InputError(f"{what} could not be made ready: {said[-1].strip()[:400]}; is there a network?")
