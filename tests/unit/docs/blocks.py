"""Code blocks of a documentation page, and how they are run."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.unit.house.tree import ROOT

PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/howto").glob("*.md"))
#: In the order of a reader: they share one folder.
START = ("start/install.md", "start/plan.md", "start/train.md", "start/result.md")

_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"\*Not run by the tests: .+\.\*\s*\Z")
_SLOW = re.compile(r"\*Run by the slow tests: .+\.\*\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block; `title` is the file that it is the text of, or None."""

    language: str
    title: str | None
    text: str
    run: bool
    slow: bool


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, from the first to the last."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        language, title, inside = fence.groups()
        run = not _NOT_RUN.search(before)
        found.append(Block(language=language, title=title, text=inside, run=run, slow=bool(_SLOW.search(before))))
    return found


def run_blocks(page: str, *, folder: Path, slow: bool) -> None:
    """Writes the files of a page and runs its commands in a folder; one that fails fails the test with its output."""
    for block in blocks_of(page):
        if not block.run or (block.slow and not slow):
            continue
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language in ("sh", "python"):
            _run(block, folder=folder, page=page)


def _run(block: Block, *, folder: Path, page: str) -> None:
    program = ["bash", "-euc"] if block.language == "sh" else [sys.executable, "-c"]
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), f"{sys.prefix}/bin", os.environ["PATH"]]),
        "SHARDWISE_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*program, block.text], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{page}: exit code {done.returncode} of\n{block.text}\n{done.stdout}\n{done.stderr}"
