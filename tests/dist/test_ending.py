"""A run that has finished is known to have, whatever comes between: a kill, or the interpreter's shutdown."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.spec.job import Job
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train import save, worker
from shardwise.train.journal import Journal
from shardwise.train.loop import train
from shardwise.train.signals import StopFlag
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.test_final import check_here
from tests.dist.worlds import run_world

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
    train = {"max_steps": 1, "warmup_steps": 0}
    job = make_job(train=train, hardware="cpu:2", layout="ddp", output_dir=str(tmp_path / "run"))
    notices: list[object] = []
    result = api.train(
        job,
        programs=api.Programs(worker="aborted"),
        on_update=lambda update: notices.append(update) if isinstance(update, api.Notice) else None,
    )
    assert (result.outcome, notices) == ("finished", [])
    assert "done, outcome finished" in result.run.rank_log(0).read_text()
    assert (tmp_path / "handed over").exists()


def _seen_by_a_kill_in_between(run: RunDirectory) -> dict[str, Any]:
    """What outcome.json says when the checkpoint that guarded final/ is about to go."""
    save.in_clean_process = check_here
    built = composed(run, execution())
    journal, seen, real = Journal(run=run, rank=0), dict[str, Any](), built.checkpoints.remove

    def remove(step: int) -> None:
        seen.update(read_json(run.outcome) or {}, final=run.final.is_dir())
        real(step)

    vars(built.checkpoints)["remove"] = remove
    ended = train(built, start=0, journal=journal, stop=StopFlag())
    assert [step for step, _ in run.checkpoints()] == [ended.steps]
    worker._finish(built, ended, run=run, hardware="cpu:1", journal=journal, seconds=1.0)
    return seen


def test_a_run_is_said_to_have_finished_before_the_checkpoint_that_guarded_its_result_goes(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    run = prepare_cell(make_job(train={"max_steps": 1, "save_steps": 0}), tmp_path)
    seen = run_world(1, _seen_by_a_kill_in_between, run)[0]
    assert (seen.get("outcome"), seen.get("saved_step"), seen["final"]) == ("finished", None, True)
    assert not run.checkpoints()


@pytest.mark.slow
def test_a_run_that_is_the_first_step_of_its_warm_up_is_saved_and_says_that_it_trains_nothing(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    settings = {"output_dir": str(tmp_path / "run"), "hardware": "cpu:1"}
    job = make_job(method="lora", train={"max_steps": 1, "warmup_steps": 3}, **settings)
    notices: list[str] = []
    result = api.train(
        job, on_update=lambda update: notices.append(update.text) if isinstance(update, api.Notice) else None
    )
    assert result.outcome == "finished"
    assert any("all of which are warm-up: nothing will be trained" in text for text in notices), notices


@pytest.mark.slow
def test_a_start_behind_the_last_step_ends_as_the_run_that_took_it(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """A run that was killed while it saved its result has all its steps, and what they measured."""
    job = make_job(train={"max_steps": 2, "save_steps": 1}, output_dir=str(tmp_path / "run"), hardware="cpu:1")
    before = api.train(job)
    measured, run = before.run.measured.read_bytes(), before.run
    shutil.rmtree(run.final)
    run.outcome.unlink()
    again = api.train(job)
    assert (again.outcome, again.step, run.final.is_dir()) == ("finished", 2, True)
    assert (read_json(run.outcome) or {})["step"] == 2
    assert run.measured.read_bytes() == measured
    assert again.report.outcome.state == "finished"
