"""Progress of a rank's main thread, and the watchdog's wait for more: between steps a multiple of
the longest recent one, before the first and in unknown phases (loading, saving) long."""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from shardwise.errors import InputError

#: Overrides the limit between two steps, in seconds.
VARIABLE = "SHARDWISE_STALL_SECONDS"

#: The least limit: a network file system may be unavailable for minutes.
LEAST_SECONDS = 300.0

#: The limit is `FACTOR` times the longest of the last `REMEMBERED` steps.
FACTOR, REMEMBERED = 10.0, 20

#: Limit of waiting for others outside steps; less than the process groups' own timeout of an hour.
LONG_SECONDS = 3000.0

#: After a request to stop: clusters kill a process after half a minute.
STOPPING_SECONDS, STOPPING_FACTOR = 10.0, 2.0


class Progress:
    """Progress of the main thread, for the watchdog. `stated_seconds`: the limit between two steps,
    if set; `alone`: no rank waits for this one; `count`: grows with each sign."""

    def __init__(self, *, stated_seconds: float | None = None, alone: bool = False) -> None:
        self.count = 0
        self._stated = stated_seconds
        self._long = float("inf") if alone else LONG_SECONDS
        self._steps = 0
        self._gaps: tuple[float, ...] = ()
        self._edge = time.monotonic()
        self._patient = False

    def touch(self) -> None:
        """Something is done that is no step."""
        self._edge = time.monotonic()
        self.count += 1

    def step(self) -> None:
        """A step is done. The first, which may compile, is not counted once there is another."""
        gap = time.monotonic() - self._edge
        self._gaps = (*(self._gaps if self._steps != 1 else ()), gap)[-REMEMBERED:]
        self._steps += 1
        self.touch()

    @property
    def has_stepped(self) -> bool:
        """A step is done."""
        return self._steps > 0

    @contextmanager
    def patient(self) -> Generator[None]:
        """Inside, something may take long, and a request to stop does not cut it short."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False
            self.touch()

    def limit(self, *, stopping: bool) -> float:
        """Seconds without progress until the rank is stuck; `stopping`: a stop was requested."""
        if self._patient:
            return self._long
        if not self._gaps:
            return STOPPING_SECONDS if stopping else self._long  # nothing that was trained would be lost
        longest = max(self._gaps)
        usual = self._stated or max(LEAST_SECONDS, FACTOR * longest)
        return min(usual, max(STOPPING_SECONDS, STOPPING_FACTOR * longest)) if stopping else usual


def stated_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """The limit that the environment sets, or None; InputError if it is no positive number."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"{VARIABLE} is {text!r}; expected seconds above 0, such as 600, or leave it out")
    return seconds
