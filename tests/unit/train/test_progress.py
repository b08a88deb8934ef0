"""How long a rank may take: learnt from its steps, and short once someone asked to stop."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardwise.errors import InputError
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train.watching import progress as module
from shardwise.train.watching import watchdog as watch
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.progress import FACTOR, LEAST_SECONDS, LONG_SECONDS, STOPPING_SECONDS, stated_seconds
from shardwise.train.watching.watchdog import StopFlag, Watch


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def after(clock: Clock, *steps: float, stated_seconds: float | None = None) -> module.Progress:
    progress = module.Progress(stated_seconds=stated_seconds)
    for seconds in steps:
        clock.now += seconds
        progress.step()
    return progress


@pytest.mark.parametrize(
    ("steps", "stopping", "limit"),
    [
        ((2.0, 1.0), False, LEAST_SECONDS),
        ((90.0, 40.0, 50.0), False, FACTOR * 50),
        ((600.0,), False, FACTOR * 600),
        ((600.0, 1.0), False, LEAST_SECONDS),  # the first one compiled
        ((1.0, 400.0, *[1.0] * 20), False, LEAST_SECONDS),  # long ago
        ((1.0, 1.0), True, STOPPING_SECONDS),
        ((1.0, 30.0), True, 60.0),
    ],
)
def test_the_limit_is_several_times_the_longest_of_the_last_steps_or_a_step_to_stop(steps, stopping, limit, clock):
    assert after(clock, *steps).limit(stopping=stopping) == limit


def test_the_environment_may_state_the_limit_of_a_step(clock) -> None:
    assert stated_seconds({}) is None
    stated = stated_seconds({"SHARDWISE_STALL_SECONDS": "7.5"})
    assert after(clock, 1.0, 1.0, stated_seconds=stated).limit(stopping=False) == 7.5
    assert after(clock, stated_seconds=stated).limit(stopping=False) == LONG_SECONDS


@pytest.mark.parametrize("text", ["soon", "0", "-3", "inf", "nan"])
def test_what_is_no_number_of_seconds_is_refused(text) -> None:
    with pytest.raises(InputError, match=f"SHARDWISE_STALL_SECONDS is '{text}'; expected seconds above 0"):
        stated_seconds({"SHARDWISE_STALL_SECONDS": text})


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = StopFlag()
    made.listen()
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_comes_twice_at_once_is_one_request(stop, monkeypatch) -> None:
    """Slurm sends it to every process, and the launcher passes it on."""
    for _ in range(2):
        signal.raise_signal(signal.SIGTERM)
        stop.listen_for(0.1)
    assert (stop.heard, stop.number) == ((signal.SIGTERM,), signal.SIGTERM)
    monkeypatch.setattr(watch, "SAME_REQUEST_SECONDS", 0.0)
    stop.number = 0  # or the handler would end this process
    signal.raise_signal(signal.SIGTERM)
    stop.listen_for(0.1)
    assert stop.heard == (signal.SIGTERM, signal.SIGTERM), "later it is a second one"


def test_a_signal_is_heard_while_the_main_thread_runs_no_handler(stop) -> None:
    """Another thread hears it in the pipe, which is filled before any handler runs."""
    listening = threading.Thread(target=stop.listen_for, args=(5,), daemon=True)
    listening.start()
    time.sleep(0.1)
    signal.raise_signal(signal.SIGTERM)
    listening.join(5)
    assert (stop.heard, stop.number) == ((signal.SIGTERM,), signal.SIGTERM)


LONG = 1.0  # seconds, in place of many


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
    for patched in (module, watch):
        monkeypatch.setattr(patched, "LONG_SECONDS", LONG)
    made = Ended(tmp_path)
    made.watch.start()
    yield made
    made.watch.over()


@pytest.mark.slow
def test_work_that_no_step_tells_of_may_take_any_time(ended) -> None:
    time.sleep(3 * LONG)
    assert ended.status is None


def test_a_second_signal_ends_it_at_once(ended) -> None:
    ended.stop.heard = (signal.SIGTERM, signal.SIGINT)
    ended.released.wait()
    assert ended.status == 128 + signal.SIGINT


def test_a_request_to_stop_before_the_first_step_says_what_it_was_still_doing(ended, monkeypatch) -> None:
    monkeypatch.setattr(module, "STOPPING_SECONDS", LONG / 2)
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
    assert read_json(ended.journal.run.rank_failure(0))["message"].startswith("nothing has moved for 1.")


def test_a_step_has_an_end_whatever_it_does(ended, monkeypatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", LONG / 2)
    ended.journal.stepped(1)
    ended.journal.stepped(2)
    time.sleep(3 * LONG)
    assert ended.status == 1
