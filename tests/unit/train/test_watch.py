"""What counts as a rank that does not get on: work that no step tells of may take any time, waiting may not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardwise.spec.run import RunDirectory, read_json
from shardwise.train.watching import progress
from shardwise.train.watching import watchdog as watch
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.signals import StopFlag
from shardwise.train.watching.watchdog import Watch

LONG = 1.0


class Ended:
    """A watch whose end is noted instead of being the process's."""

    def __init__(self, folder: Path) -> None:
        self.status: int | None = None
        self.released: torch.futures.Future[None] = torch.futures.Future()
        self.journal = Journal(run=RunDirectory(folder), rank=0)
        self.stop = StopFlag()
        self.watch = Watch(self.journal, self.stop, end=self._end)

    def _end(self, status: int) -> None:
        if self.status is None:
            self.status = status
            self.released.set_result(None)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ended]:
    for module in (progress, watch):
        monkeypatch.setattr(module, "LONG_SECONDS", LONG)
    made = Ended(tmp_path)
    made.watch.start()
    yield made
    made.watch.over()


def test_work_that_no_step_tells_of_may_take_any_time(ended) -> None:
    time.sleep(3 * LONG)
    assert ended.status is None


def test_a_second_signal_ends_it_at_once(ended) -> None:
    ended.stop.heard = (signal.SIGTERM, signal.SIGINT)
    ended.released.wait()
    assert ended.status == 128 + signal.SIGINT


def test_a_request_to_stop_before_the_first_step_says_what_it_was_still_doing(ended, monkeypatch) -> None:
    monkeypatch.setattr(progress, "STOPPING_SECONDS", LONG / 2)
    ended.journal.enter("loading")
    ended.stop.heard = (signal.SIGTERM,)
    ended.released.wait()
    assert ended.status == 128 + signal.SIGTERM
    message = read_json(ended.journal.run.rank_failure(0))["message"]
    assert message.startswith("it was still loading, before the first step: rank 0 ")


def test_who_waits_for_others_does_so_for_so_long(ended) -> None:
    began = time.monotonic()
    ended.released.wait()  # as a collective does, in C++, until the watch has ended it
    assert LONG < time.monotonic() - began < 10 * LONG
    assert ended.status == 1
    failure = read_json(ended.journal.run.rank_failure(0))
    assert failure["message"].startswith("nothing has moved for 1.")


def test_a_step_has_an_end_whatever_it_does(ended, monkeypatch) -> None:
    monkeypatch.setattr(progress, "LEAST_SECONDS", LONG / 2)
    ended.journal.stepped(1)
    ended.journal.stepped(2)
    time.sleep(3 * LONG)
    assert ended.status == 1
