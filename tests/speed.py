"""Limits of processor time that mean the same on a slow or busy machine: of a quiet core."""

import json
import os
from collections.abc import Callable
from time import process_time

#: Seconds of `yardstick` on the quiet core that limits are written for.
REFERENCE_SECONDS = 0.044
TRIES = 3


def quiet_seconds(work: Callable[[], object], *, limit: float, clock: Callable[[], float] = process_time) -> float:
    """Processor seconds of some work, the least of three tries; no further ones after one below
    `limit`.

    A try that takes longer is divided by how much slower this core is than the quiet one now: it
    may be three times as slow for minutes. `clock`: `children` where child processes work."""
    least = float("inf")
    for _ in range(TRIES):
        before = yardstick()
        began = clock()
        work()
        took = clock() - began
        if took < limit:
            return took
        slower = (before + yardstick()) / 2 / REFERENCE_SECONDS
        least = min(least, took / max(1.0, slower))
        if least < limit:
            break
    return least


def children() -> float:
    """Processor seconds of child processes that have ended."""
    now = os.times()
    return now.children_user + now.children_system


def yardstick() -> float:
    """Seconds of calls, small objects, dictionaries, sorting and text; the least of three."""
    return min(_one_yardstick() for _ in range(3))


def _one_yardstick() -> float:
    began = process_time()
    held: dict[tuple[int, int], tuple[float, ...]] = {}
    for i in range(20_000):
        key = (i % 251, i % 241)
        held[key] = tuple(float(j * i % 7) for j in range(3))
    ordered = sorted(held.items(), key=lambda one: (one[1], one[0]))
    json.dumps([[*key, *value] for key, value in ordered[:5_000]])
    return process_time() - began
