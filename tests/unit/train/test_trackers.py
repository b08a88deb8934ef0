"""Trackers: TensorBoard writes what others can read, a missing one is a sentence, a failing one stops nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardwise.launch.follow import Follower, Notice
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory
from shardwise.train.measuring.trackers import Trackers, open_trackers
from shardwise.train.watching.journal import Journal


def job(*trackers: str) -> Job:
    return job_from_data({"model": "m", "train": {"report_to": list(trackers)}})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's protobuf
def test_tensorboard_gets_every_figure(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = open_trackers(job("tensorboard"), RunDirectory(tmp_path), complain=pytest.fail)
    trackers.record({"loss": 2.5, "grad_norm": 1.0}, step=1)
    trackers.record({"loss": 1.5, "grad_norm": 0.5}, step=2)
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 2.5), (2, 1.5)]
    assert len(events.Scalars("train/grad_norm")) == 2


def test_a_tracker_that_cannot_be_opened_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file in the place of the folder")
    said: list[str] = []
    open_trackers(job("tensorboard"), RunDirectory(tmp_path), complain=said.append).record({"loss": 1.0}, step=1)
    assert said[0].startswith("tensorboard cannot be opened and is not reported to")


class Breaking:
    """A tracker whose network goes away."""

    def __init__(self) -> None:
        self.calls = 0

    def record(self, figures: dict[str, float], step: int) -> None:
        self.calls += 1
        raise ConnectionError("the tracker's host is gone")

    def close(self) -> None:
        pytest.fail("it was dropped")


def test_a_tracker_that_fails_is_dropped_once_and_said() -> None:
    said: list[str] = []
    breaking = Breaking()
    trackers = Trackers({"wandb": breaking}, complain=said.append)
    trackers.record({"loss": 1.0}, step=1)
    trackers.record({"loss": 1.0}, step=2)
    trackers.close()
    assert breaking.calls == 1
    assert said == ["wandb failed and is no longer reported to: the tracker's host is gone"]


class Leaving(Breaking):
    """A tracker that ends the program where its login is missing."""

    def record(self, figures: dict[str, float], step: int) -> None:
        sys.exit(3)


def test_a_tracker_that_calls_exit_is_dropped_too_and_whoever_follows_the_run_is_told(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    follower = Follower(run)
    trackers = Trackers({"wandb": Leaving()}, complain=Journal(run=run, rank=0).warn)
    trackers.record({"loss": 1.0}, step=1)
    assert follower.updates() == [Notice(text="wandb failed and is no longer reported to: it called exit(3)")]
