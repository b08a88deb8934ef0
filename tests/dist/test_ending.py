"""A run that has finished exits so: the interpreter's shutdown, with threads about, has no say in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise import api
from shardwise.launch.causes import launcher_log
from shardwise.spec.job import Job

#: A worker that something aborts when the interpreter shuts down, and by which something else is to be handed over.
ABORTED = """
import atexit, os, runpy
from pathlib import Path

class Aborts:
    def __del__(self, abort=os.abort):  # by then `os` may have gone
        abort()

os.last = Aborts()
atexit.register(Path(os.environ["TEST_HANDED_OVER"]).touch)
runpy.run_module("shardwise.train.worker", run_name="__main__")
"""


@pytest.mark.slow
def test_no_shutdown_of_the_interpreter_turns_success_into_failure(
    make_job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aborted.py").write_text(ABORTED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TEST_HANDED_OVER", str(tmp_path / "handed over"))
    job = make_job(train={"max_steps": 1}, hardware="cpu:2", layout="ddp", output_dir=str(tmp_path / "run"))
    notices: list[object] = []
    result = api.train(
        job,
        programs=api.Programs(worker="aborted"),
        on_update=lambda update: notices.append(update) if isinstance(update, api.Notice) else None,
    )
    assert (result.outcome, notices) == ("finished", [])
    assert "closing signal" not in launcher_log(result.run).read_text()
    assert "done, outcome finished" in result.run.rank_log(0).read_text()
    assert (tmp_path / "handed over").exists()
