"""Stopping on request: SIGTERM and SIGINT set a flag that all ranks agree on at the next step's edge.

A second signal ends the process at once; the last committed checkpoint is whole whatever happens.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopFlag:
    """The first signal asks, the second one forces."""

    def __init__(self) -> None:
        self.number = 0

    def listen(self) -> None:
        """Installs the handlers in this process's main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number
