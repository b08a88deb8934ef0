"""Requests to stop, from a user or a cluster to the launcher, kept until the launcher looks."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: A terminal that goes away asks for the same as a cluster that wants its machine back.
PASSED_ON_AS = {signal.SIGHUP: signal.SIGTERM}


class StopRequests:
    """While entered, signals are counted and do not interrupt; one inside another hands on what
    came meanwhile. Signals ignored before (`nohup`) stay ignored. Outside the main thread none are
    delivered, and none are counted.

    `also_after_errors`: the next SIGTERM does not interrupt after an error either, which is yet to
    be printed: torchrun sends one to all ranks as soon as one has failed.
    """

    def __init__(self, *, also_after_errors: bool = False) -> None:
        self._also_after_errors = also_after_errors
        self._is_over = False
        self.received: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            if error is None or not self._also_after_errors or number != signal.SIGTERM:
                signal.signal(number, handler)
        self._is_over = True
        owners = [getattr(handler, "__self__", None) for handler in self._before.values()]
        for outer in {id(owner): owner for owner in owners if isinstance(owner, StopRequests)}.values():
            outer.received += self.received

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._is_over:
            signal.signal(number, self._before[signal.Signals(number)])
        self.received.append(PASSED_ON_AS.get(signal.Signals(number), signal.Signals(number)))

    @property
    def first(self) -> signal.Signals | None:
        """The signal to pass on, SIGTERM or SIGINT; None as long as nobody asked."""
        return self.received[0] if self.received else None

    @property
    def is_urgent(self) -> bool:
        """Someone asked twice."""
        return len(self.received) > 1

    def wait(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Sleeps, less if a request arrives or `until` becomes true."""
        before, deadline = len(self.received), time.monotonic() + seconds
        while len(self.received) == before and not until() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))
