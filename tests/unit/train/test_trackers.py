"""Trackers: TensorBoard writes what others read, a missing one is said, a failing one ignored."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.launch.follow import Follower, Notice
from shardwise.spec.job.file import job_from_data
from shardwise.spec.run import RunDirectory
from shardwise.train.measuring import metrics as measuring
from shardwise.train.measuring.metrics import Tracker, Trackers
from shardwise.train.watching.journal import Journal


def opened(name: str, folder: Path, *, complain: Callable[[str], None]) -> Trackers:
    job = job_from_data({"model": "m", "train": {"report_to": [name]}})
    return Trackers([name], job, RunDirectory(folder), complain=complain)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's protobuf
def test_tensorboard_gets_every_figure(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = opened("tensorboard", tmp_path, complain=pytest.fail)
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
    opened("tensorboard", tmp_path, complain=said.append).record({"loss": 1.0}, step=1)
    assert said[0].startswith("tensorboard cannot be opened and is not reported to")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (ConnectionError("the tracker's host is gone"), "the tracker's host is gone"),
        (SystemExit(3), "it called exit(3)"),  # as where a login is missing
    ],
)
def test_a_tracker_that_fails_is_dropped_once_and_whoever_follows_the_run_is_told(how, why, tmp_path, monkeypatch):
    run, calls = RunDirectory(tmp_path), list[int]()
    follower = Follower(run)

    def record(figures: dict[str, float], step: int) -> None:
        calls.append(step)
        raise how

    breaking = Tracker(record=record, close=lambda: pytest.fail("it was dropped"))
    monkeypatch.setitem(measuring._TRACKERS, "wandb", lambda *_: breaking)
    trackers = opened("wandb", tmp_path, complain=Journal(run=run, rank=0).warn)
    trackers.record({"loss": 1.0}, step=1)
    trackers.record({"loss": 1.0}, step=2)
    trackers.close()
    assert calls == [1]
    assert follower.updates() == [Notice(text=f"wandb failed and is no longer reported to: {why}")]
