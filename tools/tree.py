"""Keeps the list of files in ARCHITECTURE.md equal to the tree: each file's caption is its docstring's first sentence.

python tools/tree.py            # exits 1 where the list is out of date
python tools/tree.py --write    # renews it
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/shardwise"
DOCUMENT = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- tree: written by tools/tree.py -->", "<!-- end of tree -->"


def caption(path: Path) -> str:
    """The first sentence of a file's docstring, or nothing where there is none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`\"])\.(?:\s|$)", paragraph, maxsplit=1)[0]


def listing() -> str:
    """A Markdown list of every package with its files."""
    lines: list[str] = []
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = folder.relative_to(PACKAGE.parent).as_posix()
        lines += ["", f"**`{name}/`** {caption(folder / '__init__.py')}", ""]
        files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines += [f"- `{path.name}` {caption(path)}" for path in files]
    return "\n".join(lines).strip()


def renewed(document: str) -> str:
    """The document with the list as it should be.

    Raises:
        ValueError: the markers of the list are missing.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{listing()}\n\n{END}{after}"


def main() -> None:
    """Compares, or writes."""
    document = DOCUMENT.read_text(encoding="utf-8")
    wanted = renewed(document)
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(wanted, encoding="utf-8")
    elif wanted != document:
        sys.exit(f"{DOCUMENT.name} does not list the tree as it is; run: python tools/tree.py --write")


if __name__ == "__main__":
    main()
