"""An evaluation that a stop left out is made up for by the next start, whatever its layout, with the same loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, read_metrics
from shardwise.train.loop import Outcome, train
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.signals import StopFlag
from tests.dist.cells import composed, prepare_cell, relative, spread, train_rank
from tests.dist.test_checkpoints import interrupt, resume
from tests.dist.worlds import run_world

STEPS, EVERY = 6, 2
ONE, SHARDED = spread(), spread(Layout(dp_shard=2))


@pytest.fixture
def job(make_job: Callable[..., Job], rows: dict[str, Path]) -> Job:
    return make_job(train={"max_steps": STEPS, "eval_steps": EVERY}, data={"eval_path": str(rows["eval"])})


def _evaluations(run: RunDirectory) -> dict[int, float]:
    return {record["step"]: record["eval_loss"] for record in read_metrics(run) if "eval_loss" in record}


def _notices(run: RunDirectory) -> str:
    return run.notices.read_text() if run.notices.is_file() else ""


@pytest.mark.parametrize(
    ("after", "before", "behind"), [(4, ONE, SHARDED), (STEPS, SHARDED, ONE), (4, SHARDED, SHARDED), (STEPS, ONE, ONE)]
)
def test_the_next_start_makes_up_for_it(
    after: int, before: Execution, behind: Execution, job: Job, tmp_path: Path
) -> None:
    whole, run = prepare_cell(job, tmp_path / "whole"), prepare_cell(job, tmp_path / "stopped")
    run_world(1, train_rank, whole, ONE)
    interrupt(run, before, after=after)
    left_out = f"the evaluation after step {after} was left out: the run was asked to stop"
    assert f"{left_out}; the same command makes up for it" in _notices(run)
    assert sorted(_evaluations(run)) == list(range(EVERY, after, EVERY))
    start, _ = run_world(behind.layout.world_size, resume, run, behind)[0]
    assert start == after
    expected, found = _evaluations(whole), _evaluations(run)
    assert list(found) == list(expected) == [2, 4, 6]
    assert relative(list(expected.values()), list(found.values())) <= 1e-5
    assert [record["step"] for record in read_metrics(run)] == list(range(1, STEPS + 1))


def _stopped_again(run: RunDirectory, chosen: Execution) -> Outcome:
    """A start that is asked to stop before it has made up for anything."""
    built, stop = composed(run, chosen), StopFlag()
    start, stop.number = built.checkpoints.restore(), 15
    return train(built, start=start, journal=Journal(run=run, rank=built.world.rank), stop=stop)


@pytest.mark.parametrize("after", [4, STEPS])
def test_a_stop_meanwhile_leaves_it_to_the_start_after(after: int, job: Job, tmp_path: Path) -> None:
    run = prepare_cell(job, tmp_path)
    interrupt(run, SHARDED, after=after)
    (ended, _) = run_world(2, _stopped_again, run, SHARDED)
    assert ended == Outcome(steps=after, signal=15, saved=True)
    assert sorted(_evaluations(run)) == list(range(EVERY, after, EVERY))
    run_world(1, resume, run, ONE)
    assert list(_evaluations(run)) == [2, 4, 6]


def _without_a_disk(run: RunDirectory, chosen: Execution) -> Outcome:
    """Is asked to stop in its last step, behind which no checkpoint can be saved."""
    built, stop = composed(run, chosen), StopFlag()

    class Asking(Journal):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "step" and value == STEPS:
                stop.number = 15

    vars(built.checkpoints)["save"] = lambda step: False
    return train(built, start=0, journal=Asking(run=run, rank=0), stop=stop)


def test_a_last_step_that_is_in_no_checkpoint_ends_the_run_without_it(job: Job, tmp_path: Path) -> None:
    """No other start could make up for it: what is trained would be trained anew."""
    run = prepare_cell(job, tmp_path)
    (ended,) = run_world(1, _without_a_disk, run, ONE)
    assert ended == Outcome(steps=STEPS, signal=0, saved=False)
    assert f"the evaluation after step {STEPS} was left out: the run was asked to stop" in _notices(run)
    assert "makes up for it" not in _notices(run)
