"""A watchdog thread: ends a rank without progress, and receives signals while the main thread is in
a collective, where Python runs no handlers. Ranks find out together which they wait for.

SIGTERM and SIGINT ask a run to stop, on which all ranks agree after a step; a second ends it, if
not within seconds: Slurm sends one to every process, and the launcher passes it on.
"""

import atexit
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from shardwise.parallel.mesh import World
from shardwise.spec.job.strict import from_plain
from shardwise.spec.run import read_json, write_json
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.progress import LONG_SECONDS
from shardwise.train.watching.stall import Counted, StallError, Standing, Verdict, begun, is_waiting, judge, standing

STOPPING = (signal.SIGTERM, signal.SIGINT)

#: For so long after the first signal the same one says nothing new.
SAME_REQUEST_SECONDS = 3.0


class StopFlag:
    """Requests to stop. `number`: the first signal, once its handler ran in the main thread; else
    0. `heard`: all signals, known also while the main thread runs no handlers."""

    def __init__(self) -> None:
        self.number = 0
        self.heard: tuple[int, ...] = ()
        self._arriving: int | None = None
        self._handled = self._heard = 0.0

    def listen(self) -> None:
        """Installs the handlers, and a pipe that signals are written to; in the main thread."""
        self._arriving, into = os.pipe()
        os.set_blocking(self._arriving, False)
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        for number in STOPPING:
            signal.signal(number, self._asked)

    def listen_for(self, seconds: float) -> None:
        """Waits in another thread for signals, at most so long, and appends them to `heard`."""
        if self._arriving is None:
            time.sleep(seconds)
        elif select.select([self._arriving], [], [], seconds)[0]:
            for number in os.read(self._arriving, 1024):
                if number in STOPPING and not (self.heard and _is_same(number, self.heard[0], since=self._heard)):
                    self._heard = time.monotonic()
                    self.heard += (number,)

    def agreed(self, group: dist.ProcessGroup | None) -> int:
        """The signal that any rank of a group was asked to stop with, or 0; a collective."""
        number = torch.tensor(self.number)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=group)
        return int(number)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.number and not _is_same(number, self.number, since=self._handled):
            os._exit(128 + number)
        if not self.number:
            self.number, self._handled = number, time.monotonic()


def _is_same(number: int, before: int, *, since: float) -> bool:
    """Whether a signal repeats the request of one received at `since`, on the monotonic clock."""
    return number == before and time.monotonic() - since < SAME_REQUEST_SECONDS


def end_process(status: int) -> NoReturn:
    """Runs functions registered with `atexit`, flushes, and exits at once. Threads of gloo and NCCL
    outlive process groups; a shutdown may end one inside C++, which aborts a finished run."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # what a shutdown calls; an error in it is printed
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it may have gone away
            stream.flush()
    os._exit(status)


@contextmanager
def ended_after(seconds: float, status: int) -> Generator[None]:
    """Ends the process with `status` where what is inside takes longer."""
    timer = threading.Timer(seconds, _give_up, (seconds, status))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float, status: int) -> NoReturn:
    print(f"process groups were not destroyed within {seconds:g} s; the run is complete", file=sys.stderr)
    end_process(status)


POLL_SECONDS = 1.0

#: How long other ranks may take to answer, and the first of them to write the failure.
ANSWER_SECONDS, VERDICT_SECONDS = 5.0, 3.0
BRIEFLY_SECONDS = 0.1


class Watch:
    """Watches the main thread of one rank. `end`: ends the process with a status."""

    def __init__(self, journal: Journal, stop: StopFlag, *, end: Callable[[int], Any] = os._exit) -> None:
        self.end = end
        self._journal, self._run, self._stop = journal, journal.run, stop
        self._world: World | None = None
        self._over = threading.Event()
        self._still = self._waited = 0.0
        self._seen: tuple[int, tuple[Counted, ...]] = (0, ())

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(target=self._keep, name="watch", daemon=True).start()

    def joined(self, world: World) -> None:
        """From here on there are peers."""
        self._world = world

    def over(self) -> None:
        """Ends the watch, before process groups are destroyed."""
        self._over.set()
        self._world = None

    def _keep(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            limit = self._journal.progress.limit(stopping=bool(self._stop.heard))
            poll = min(POLL_SECONDS, limit / 10)
            self._stop.listen_for(poll)
            if len(self._stop.heard) > 1:
                self.end(128 + self._stop.heard[-1])
            now = time.monotonic()
            # The time in which this whole process was stopped does not count.
            self._count(min(now - last, 2 * poll), untold=limit >= LONG_SECONDS)
            last = now
            may_be_called = self._world is not None and self._still > limit / 2
            # Another rank that has run out of time has written where it is.
            if self._waited > limit or (may_be_called and any(self._run.logs.glob("rank_*.standing.json"))):
                self._conclude()
                return

    def _count(self, seconds: float, *, untold: bool) -> None:
        """Adds up seconds without progress, and those of them spent waiting. `untold`: the current
        phase has no known duration: only waiting for one and the same collective is limited."""
        before, self._seen = self._seen, (self._journal.progress.count, begun(self._world) if untold else ())
        if self._seen != before:
            self._still = self._waited = 0.0
        self._still += seconds
        self._waited = 0.0 if untold and not is_waiting() else self._waited + seconds

    def _conclude(self) -> None:
        """Writes where this rank is, reads the other ranks, and ends the process."""
        self._journal.last_word.acquire()
        try:
            said = f"{StallError.__name__}: nothing has moved for {self._still:.0f} s. Each thread:"
            print(said, file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            mine = standing(self._world, rank=self._journal.rank, phase=self._journal.at)
            write_json(self._run.rank_standing(mine.rank), asdict(mine))
            asked = range(mine.rank, mine.rank + 1) if self._world is None else range(self._world.size)
            standings = self._answers(mine, asked)
            at = self._journal.before_first_step if self._stop.heard else ""
            verdict = judge(standings, ranks=asked, seconds=self._still, at=at)
            self._write(verdict, first=standings[0].rank)
        except Exception:  # noqa: BLE001  # a disk that is full, or whatever else: no reason to go on waiting
            traceback.print_exc()
        finally:
            self.end(128 + self._stop.heard[0] if self._stop.heard else 1)

    def _answers(self, mine: Standing, asked: range) -> list[Standing]:
        """The standings of all ranks that write theirs in time, by rank."""
        found, deadline = {mine.rank: mine}, time.monotonic() + ANSWER_SECONDS
        while len(found) < len(asked) and time.monotonic() < deadline:
            time.sleep(BRIEFLY_SECONDS)
            for rank in set(asked) - set(found):
                written = read_json(self._run.rank_standing(rank))
                if written is not None:
                    found[rank] = from_plain(Standing, written)
        return [found[rank] for rank in sorted(found)]

    def _write(self, verdict: Verdict, *, first: int) -> None:
        """Writes the failure files. The launcher names the earliest: the first answering rank's."""
        rank, error = self._journal.rank, StallError(verdict.sentence)
        if rank == first:
            self._journal.write_failure(error, rank=verdict.culprit, phase=verdict.phase)
        deadline = time.monotonic() + VERDICT_SECONDS
        while not self._run.rank_failure(verdict.culprit).exists() and time.monotonic() < deadline:
            time.sleep(BRIEFLY_SECONDS)
        if rank != verdict.culprit:
            self._journal.write_failure(error, rank=rank, phase=self._journal.at)
