"""Stopping on request: SIGTERM and SIGINT set a flag that all ranks agree on at the next step's edge.

A second signal ends the process at once; the last committed checkpoint is whole whatever happens.
"""

from __future__ import annotations

import os
import select
import signal
import time
from types import FrameType

import torch
import torch.distributed as dist

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """The first signal asks, the second one forces.

    Attributes:
        number: the signal that asked, once the main thread has heard of it; else 0.
        heard: all that arrived, known also while the main thread is somewhere where Python runs no handlers.
    """

    def __init__(self) -> None:
        self.number = 0
        self.heard: tuple[int, ...] = ()
        self._arriving: int | None = None

    def listen(self) -> None:
        """Installs the handlers in this process's main thread, and a pipe that the C of Python writes signals into."""
        self._arriving, into = os.pipe()
        os.set_blocking(self._arriving, False)
        os.set_blocking(into, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        for number in STOPPING:
            signal.signal(number, self._asked)

    def listen_for(self, seconds: float) -> None:
        """Called by another thread: waits for signals, at most so long, and counts them in `heard`."""
        if self._arriving is None:
            time.sleep(seconds)
        elif select.select([self._arriving], [], [], seconds)[0]:
            self.heard += tuple(number for number in os.read(self._arriving, 1024) if number in STOPPING)

    def agreed(self, group: dist.ProcessGroup | None) -> int:
        """The signal that any rank of a group was asked to stop with, or 0; every rank of it must ask."""
        number = torch.tensor(self.number)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=group)
        return int(number)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number
