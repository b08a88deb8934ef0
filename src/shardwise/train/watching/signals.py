"""SIGTERM and SIGINT ask a run to stop, on which all ranks agree after a step; a second ends it, if
not within seconds: Slurm sends one to every process, and the launcher passes it on."""

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist

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
