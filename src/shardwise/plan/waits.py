"""What a pipeline's step takes at least, without a schedule: before, at and behind its last rank's work.

The last rank waits for the first micro-batch, does its own work, and the others end behind its last gradient of an
input. Where a backward is cut in two, the last rank may make the gradients of weights of as many micro-batches as there
are ranks only when it has passed on that one (`spec.schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwise.plan.climbs import Rung
from shardwise.plan.pieces import Pieces
from shardwise.plan.traffic import Traffic
from shardwise.spec.layout import Schedule


class Block(NamedTuple):
    """Seconds of the mean block for one micro-batch.

    Attributes:
        both: its forward and whole backward.
        ahead: its forward.
        back: its backward to the input.
        weights: its weights' gradients.
    """

    both: float
    ahead: float
    back: float
    weights: float

    def sending(self, traffic: Traffic) -> float:
        """Both of its passes, at least, with what it sends."""
        return traffic.over(self.ahead, self.both - self.ahead)

    def cut_wait(self, others: int, *, deferred: int) -> float:
        """What the last rank waits for, where backwards are cut in two, before its first micro-batch and behind its
        last: so many blocks of others, while it makes the gradients of weights of so many of its own."""
        return others * self.ahead + max(0.0, others * self.back - deferred * self.weights)


def block_of(pieces: Pieces) -> Block:
    """The mean block of a micro-batch."""
    ahead, back = pieces.forward.seconds, pieces.backward.seconds
    return Block(ahead + back, ahead, back - pieces.weights, pieces.weights)


class _Size(NamedTuple):
    """One size of micro-batch.

    Attributes:
        all: seconds of a step on one rank that has all layers.
        losses: seconds of all micro-batches' losses.
        micros: micro-batches of a step.
    """

    all: float
    block: Block
    losses: float
    micros: int


class Waits:
    """The sizes of one ladder in pipelines; so many are asked about that sizes are taken apart once for all of them.

    Blocks are said as `others`, those of the first stages of all ranks but the last, and `own`, those of all stages of
    the last.

    Args:
        ladder: sizes whose pieces are known, at least one.
    """

    def __init__(self, ladder: Sequence[Rung]) -> None:
        self._sizes = [_size(rung, rung.pieces) for rung in ladder if rung.pieces is not None]

    def steps(self, schedule: Schedule, *, pp: int, others: int, own: int) -> list[float]:
        """Seconds of a step with each size."""
        if schedule != "zero_bubble":
            return [
                max(work / pp, (others + micros * own) * block.both + losses)
                for work, block, losses, micros in self._sizes
            ]
        return [
            max(
                work / pp,
                block.cut_wait(others, deferred=min(pp, micros) * own) + micros * own * block.both + losses,
            )
            for work, block, losses, micros in self._sizes
        ]


def _size(rung: Rung, pieces: Pieces) -> _Size:
    return _Size(rung.seconds, block_of(pieces), rung.micros * pieces.loss.seconds, rung.micros)
