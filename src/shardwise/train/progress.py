"""Whether a rank gets on: what its main thread marks as done, and how long it may take to mark the next thing.

The limit is learnt from the run: a step may take several times the longest of the last ones. Before there are any, and
while something is done whose duration no step tells of (loading, a first step that compiles, a save), it is long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from shardwise.errors import InputError

#: Sets the limit between two steps, in seconds, instead of what is learnt.
VARIABLE = "SHARDWISE_STALL_SECONDS"

#: No step is given up sooner. torchtitan waits 100 s; a network file system may be away for longer than that.
LEAST_SECONDS = 300.0

#: So many times the longest of so many last steps.
FACTOR, REMEMBERED = 10.0, 20

#: Of waiting for others in what no step tells of; the process groups wait for an hour, and then name nobody.
LONG_SECONDS = 3000.0

#: Clusters wait no longer than half a minute for what they asked to stop: a rank that then takes longer than this, and
#: than so many times its longest step, is not about to come to a step's edge.
STOPPING_SECONDS, STOPPING_FACTOR = 10.0, 2.0


class Progress:
    """Marks of the main thread, read by the one that watches it.

    Args:
        stated_seconds: the limit of a step, where it is not to be learnt.
        alone: nobody waits for this rank, so that what no step tells of may take any time.

    Attributes:
        count: of marks; it grows as long as the rank gets on.
    """

    def __init__(self, *, stated_seconds: float | None = None, alone: bool = False) -> None:
        self.count = 0
        self._stated = stated_seconds
        self._long = float("inf") if alone else LONG_SECONDS
        self._steps = 0
        self._gaps: tuple[float, ...] = ()
        self._edge = time.monotonic()
        self._patient = False

    def touch(self) -> None:
        """Something is done whose duration tells nothing about steps."""
        self._edge = time.monotonic()
        self.count += 1

    def step(self) -> None:
        """A step is done. The first one, which may compile and connect, counts until there is another."""
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
        """Something is done that may take long, and that a request to stop shall not cut short."""
        self._patient = True
        try:
            yield
        finally:
            self._patient = False
            self.touch()

    def limit(self, *, stopping: bool) -> float:
        """Seconds after which a rank that marks nothing does not get on.

        Args:
            stopping: someone has asked to stop.
        """
        if self._patient:
            return self._long
        if not self._gaps:
            return STOPPING_SECONDS if stopping else self._long  # nothing that was trained would be lost
        longest = max(self._gaps)
        usual = self._stated or max(LEAST_SECONDS, FACTOR * longest)
        return min(usual, max(STOPPING_SECONDS, STOPPING_FACTOR * longest)) if stopping else usual


def stated_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """The limit that the environment states; None where it states none.

    Raises:
        InputError: it is no number of seconds.
    """
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
