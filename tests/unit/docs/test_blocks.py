"""What Get started and How-to tell a reader to type works."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.house.tree import ROOT
from tests.warm.shim import KIND

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
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        before = text[: fence.start()]
        language, title, inside = fence.groups()
        run = not _NOT_RUN.search(before)
        found.append(Block(language=language, title=title, text=inside, run=run, slow=bool(_SLOW.search(before))))
    return found


def run_blocks(page: str, *, folder: Path, slow: bool) -> None:
    """Writes a page's files and runs its commands in a folder; the first that fails is shown."""
    for block in blocks_of(page):
        if not block.run or (block.slow and not slow):
            continue
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language in ("sh", "python"):
            _run(block, folder=folder, page=page)


def _run(block: Block, *, folder: Path, page: str) -> None:
    program = ["bash", "-euc"] if block.language == "sh" else [sys.executable, "-c"]
    places = os.pathsep.join([str(Path(sys.executable).parent), f"{sys.prefix}/bin", os.environ["PATH"]])
    environment = {**os.environ, "PATH": places, "SHARDWISE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    run: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run([*program, block.text], check=False, cwd=folder, env=environment, **run)
    assert done.returncode == 0, f"{page}: exit code {done.returncode} of\n{block.text}\n{done.stdout}\n{done.stderr}"


SLOW_PAGES = [page for page in PAGES if any(block.slow for block in blocks_of(page))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny model and some chats, which the pages' job files name."""
    folder = tmp_path_factory.mktemp("docs")
    rows = (ROOT / "examples/demo/data/yaml_answers.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:64]
    (folder / "chats.jsonl").write_text("".join(rows), encoding="utf-8")
    sizes = ["--hidden-size", "64", "--num-layers", "2"]
    script = [sys.executable, ROOT / "examples/demo/make_model.py", folder / "tiny", "--rows", folder / "chats.jsonl"]
    run = {"env": {**os.environ, KIND: "torch"}, "capture_output": True, "timeout": 120}
    subprocess.run([*script, *sizes], check=True, **run)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.dist
def test_get_started_works_from_its_first_block_to_its_last(folder):
    for page in START:
        run_blocks(page, folder=folder, slow=False)
    assert (folder / "runs/first/final/adapter_model.safetensors").is_file()


def test_the_blocks_of_a_how_to_page_work(folder):
    run_blocks(PAGES[0], folder=folder, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_blocks_of_all_other_how_to_pages_work(made, tmp_path):
    for number, page in enumerate(PAGES[1:]):
        run_blocks(page, folder=shutil.copytree(made, tmp_path / str(number)), slow=False)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("page", SLOW_PAGES)
def test_the_blocks_that_train_work_too(page, folder):
    run_blocks(page, folder=folder, slow=True)


@pytest.mark.parametrize("page", [*START, *PAGES])
def test_a_block_is_run_or_written_to_a_file_or_says_why_not(page):
    for block in blocks_of(page):
        if block.run:
            assert block.language in (("sh", "python") if block.title is None else ("yaml", "json")), block.text
