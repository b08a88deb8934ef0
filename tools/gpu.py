"""Keeps docs/how/measured.md equal to what `make gpu` and `make gpu-many` have written, and to earlier figures.

python tools/gpu.py            # exits 1 where the page is out of date
python tools/gpu.py --write    # renews it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))  # where `make gpu` runs, it need not be installed

from shardwise import __version__  # noqa: E402

DOCS = ROOT / "docs"
DOCUMENT = DOCS / "how/measured.md"
#: File of `benchmarks/gpu/run.py` -> heading, make target, and what is said where there is no file.
FILES = {
    "gpu.json": ("One GPU", "gpu", "`make gpu` has not been run on this version: there is no figure of it."),
    "gpu-many.json": (
        "Several GPUs",
        "gpu-many",
        "`make gpu-many` has not been run: layouts over several GPUs have not been measured yet.",
    ),
}
EARLIER = "gpu-63e8f21.json"


def figure(value: Any, unit: str) -> str:
    """For a table: shares in percent, promises as yes or no, the rest in at most four digits."""
    if isinstance(value, str):
        return value.replace("|", "\\|").replace("\n", " ")
    if value is None:
        return "-"
    if unit == "yes":
        return "yes" if value else "no"
    if unit in ("share", "difference"):
        return f"{value:+.1%}" if abs(value) >= 1e-3 else f"{value:.1e}"
    number = f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} {unit}".strip()


def wanted(line: dict[str, Any]) -> str:
    """What a figure should be; a promise needs no words."""
    return "" if line["unit"] == "yes" else line["wanted"]


def measured(found: dict[str, Any]) -> Iterator[str]:
    """Lines of one file of `run.py`."""
    lines = [line for section in found["sections"].values() for line in section]
    counts = {said: sum(line["verdict"] == said for line in lines) for said in ("PASS", "FAIL")}
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    package = f"package {found['package']} at {found['commit']}"
    yield f"{found['processes']} x {found['device']} on {found['date']}, {package}."
    if found["package"] != __version__:
        yield f"**That is not this version**, which is {__version__}."
    yield f"Versions, and those of other trainers where they were installed: {versions}."
    yield f"{counts['PASS']} PASS, {counts['FAIL']} FAIL; the rest are figures."
    yield from ("", "| what | figure | wanted | verdict |", "|---|---|---|---|")
    for line in lines:
        said = figure(line["figure"], line["unit"])
        yield f"| {line['what']} | {said} | {wanted(line)} | {line['verdict']} |"


def earlier(found: dict[str, Any]) -> Iterator[str]:
    """Lines of figures that were taken by hand."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    yield f"## Earlier: {found['device']}, {found['date']}"
    yield ""
    yield f"**The package at {found['commit']}**, not this version; {versions}."
    yield found["about"]
    title = ""
    for table in found["tables"]:
        if table["title"] != title:
            title = table["title"]
            yield from ("", f"### {title}")
        yield from ("", *([table["before"], ""] if table["before"] else []))
        yield "| " + " | ".join(table["columns"]) + " |"
        yield "|---" * len(table["columns"]) + "|"
        yield from ("| " + " | ".join(row) + " |" for row in table["rows"])
        yield from ("", table["after"]) if table["after"] else ()
    yield from ("", "### What went wrong there", "", *(f"- {note}" for note in found["notes"]))


def page(docs: Path = DOCS) -> str:
    """The page as it should be."""
    lines = [
        "# Measured on GPUs",
        "",
        "Written by `python tools/gpu.py --write` from what `make gpu` and `make gpu-many`",
    ]
    lines += [f"leave in `docs/`, and from the earlier figures of `docs/{EARLIER}`."]
    for name, (heading, target, without) in FILES.items():
        path = docs / name
        lines += ["", f"## {heading}: `make {target}`", ""]
        lines += measured(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else [without]
    lines += ["", *earlier(json.loads((docs / EARLIER).read_text(encoding="utf-8"))), ""]
    return "\n".join(lines)


def main() -> None:
    """Compares, or writes."""
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(page(), encoding="utf-8")
    elif DOCUMENT.read_text(encoding="utf-8") != page():
        sys.exit("docs/how/measured.md is not what docs/gpu*.json say; run: python tools/gpu.py --write")


if __name__ == "__main__":
    main()
