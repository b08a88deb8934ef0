"""One server for the tests of a file, over a folder with a finished run, a live one and a model."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import shardwise
from tests.unit.configs import config
from tests.unit.report.runs import RunMaker, finished_run, make_job
from tests.unit.web.browser import browser
from tests.unit.web.served import Served, serving

__all__ = ["browser", "shardwise"]

CONFIG = config("llama", 2048, 5632, 12, 32, 4, vocab=32000, max_position_embeddings=4096, tie_word_embeddings=False)


def fill(folder: Path) -> Path:
    """Two runs, a model, and beside the folder what must never be read."""
    folder.mkdir(parents=True)
    finished_run(folder / "runs/first")
    RunMaker(root=folder / "runs/live", job=make_job(method="full")).planned().prepared().started().stepped(range(1, 6))
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(CONFIG))
    outside = folder.parent / "outside"
    finished_run(outside)
    (outside / "config.json").write_text(json.dumps(CONFIG))
    (folder / "link").symlink_to(outside)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("starlette", reason="needs shardwise[web]")
    pytest.importorskip("uvicorn", reason="needs shardwise[web]")
    with serving(fill(tmp_path_factory.mktemp("web") / "folder")) as found:
        yield found
