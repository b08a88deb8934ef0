"""What Get started and How-to tell a reader to type works."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.unit.docs.blocks import PAGES, START, blocks_of, run_blocks
from tests.unit.house.tree import ROOT
from tests.warm.shim import KIND

SLOW_PAGES = [page for page in PAGES if any(block.slow for block in blocks_of(page))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a tiny model and some chats, which the pages' job files name."""
    folder = tmp_path_factory.mktemp("docs")
    data = ROOT / "examples/demo/data/yaml_answers.jsonl"
    rows = data.read_text(encoding="utf-8").splitlines(keepends=True)[:64]
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
