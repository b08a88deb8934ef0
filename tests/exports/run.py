"""`make test-exports`: what `export` writes is read by each tool's own parser, and nothing trained.

Each tool is installed at the version that exports are written for, into a temporary environment
above this one. Exits 1 where a tool refuses a file, or reads something else than the plan.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from contextlib import chdir
from pathlib import Path

from ruamel.yaml import YAML

from shardwise import api
from tests.exports.cases import CASES, Case

CHECKS = Path(__file__).parent / "checks"

SETTINGS = {"HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}

_READ = tomllib.loads(Path(__file__).with_name("pins.toml").read_text(encoding="utf-8"))
#: Tool -> what is installed for it.
PINS = {
    tool: [one for pin in pins for one in (_READ["http"] if pin == "http" else [pin])]
    for tool, pins in _READ["tools"].items()
}


def main() -> int:
    """Runs the checks of the targets that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(PINS)}; all, by default")
    targets = parser.parse_args().targets or list(PINS)
    unknown = sorted(set(targets) - set(PINS))
    if unknown:
        parser.error(f"there is no check of {', '.join(unknown)}; there are {', '.join(PINS)}")
    failed = [target for target in targets if not check(target)]
    print(f"\n{len(targets) - len(failed)} of {len(targets)} tools read what is written for them")
    return 1 if failed else 0


def check(target: str) -> bool:
    """Whether the tool reads every case of its target as it was meant."""
    print(f"\n##### {target}: {' '.join(PINS[target]) or 'what is installed'}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in (one for one in CASES if target in one.targets):
            write(case, target, folder / "cases" / case.name)
        python = environment(target, folder / "venv")
        ran = subprocess.run(
            [python, CHECKS / f"read_{target.replace('-', '_')}.py", *sorted((folder / "cases").iterdir())],
            cwd=folder,
            env={**os.environ, **SETTINGS, "HF_HOME": str(folder / "home"), "HOME": str(folder)},
            timeout=600,
            check=False,
        )
    return ran.returncode == 0


def write(case: Case, target: str, folder: Path) -> None:
    """The job and its rows, and what is exported of it."""
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 64)
    with (folder / "job.yaml").open("w") as file:
        YAML().dump(case.job, file)
    with chdir(folder):
        api.write_export(api.export("job.yaml", to=target), ".")


def environment(target: str, folder: Path) -> Path:
    """The interpreter of an environment with the target's pins, above what is installed here."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    if PINS[target]:
        options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
        options += [] if target in _READ["whole"] else ["--no-deps"]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *PINS[target]]
        subprocess.run(pip, check=True, timeout=600)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "zz_below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


if __name__ == "__main__":
    sys.exit(main())
