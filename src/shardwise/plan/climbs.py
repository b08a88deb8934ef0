"""Sizes of a micro-batch in the order of what a step takes at least with them.

In a pipeline that order is another than the one of the work alone: fewer, larger micro-batches leave ranks waiting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from sys import maxsize
from typing import NamedTuple

from shardwise.plan.pieces import Pieces


class Rung(NamedTuple):
    """One size of micro-batch.

    Attributes:
        seconds: all forwards and backwards of a step, on one rank that has all layers; 0 where no time is asked for.
        pieces: what these are made of; None where no time is asked for.
        saved: bytes that the mean block of one micro-batch keeps for its backward.
        at_work: bytes that a block keeps while it is at work, whatever is computed again.
    """

    seconds: float
    size: int
    micros: int
    pieces: Pieces | None
    saved: float
    at_work: float


class Climb(NamedTuple):
    """The sizes of one ladder, by what a step takes at least in one order of the pipeline.

    Attributes:
        seconds: of a step at least, in growing order.
        order: which of the ladder's sizes each is.
        smallest: the fewest sequences of a micro-batch of each and those before it.
        fewest: the fewest forwards of a step of each and those before it.
    """

    seconds: tuple[float, ...]
    order: tuple[int, ...]
    smallest: tuple[int, ...]
    fewest: tuple[int, ...]

    def rungs(self, ladder: Sequence[Rung]) -> Iterator[Rung]:
        """The sizes in this order."""
        return (ladder[index] for index in self.order)


class Reach(NamedTuple):
    """What sizes of a micro-batch may come to within a time.

    Attributes:
        seconds: of a step, at least.
        smallest: the fewest sequences of a micro-batch of any of them.
        fewest: the fewest forwards of a step of any of them.
    """

    seconds: float
    smallest: int
    fewest: int


def climb(ladder: Sequence[Rung], seconds: Sequence[float]) -> Climb:
    """Puts the sizes of a ladder in order: of each what a step takes at least."""
    order = tuple(sorted(range(len(seconds)), key=seconds.__getitem__))
    return Climb(
        seconds=tuple(seconds[index] for index in order),
        order=order,
        smallest=tuple(accumulate((ladder[index].size for index in order), min)),
        fewest=tuple(accumulate((ladder[index].micros for index in order), min)),
    )


def reach_of(sizes: Climb, within: float) -> Reach | None:
    """What those sizes come to whose step may be over within so many seconds; None where there is none."""
    last = bisect_right(sizes.seconds, within) - 1
    return Reach(sizes.seconds[0], sizes.smallest[last], sizes.fewest[last]) if last >= 0 else None


def reach_of_more(sizes: Climb, ladder: Sequence[Rung], also: Iterable[float], within: float) -> Reach | None:
    """The same where a step takes no less than other seconds either, which come in the order of the climb."""
    least, smallest, fewest = inf, maxsize, maxsize
    for seconds, index, more in zip(sizes.seconds, sizes.order, also, strict=False):
        if seconds > within:
            break
        if more <= within:
            least = min(least, max(seconds, more))
            smallest, fewest = min(smallest, ladder[index].size), min(fewest, ladder[index].micros)
    return Reach(least, smallest, fewest) if least <= within else None
