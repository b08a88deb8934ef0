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
from shardwise.spec.layout import Schedule


class _Size(NamedTuple):
    """One size of micro-batch.

    Attributes:
        all: seconds of a step on one rank that has all layers.
        both: of a block's forward and whole backward, for one micro-batch; as the next three.
        ahead: of its forward.
        back: of its backward to the input.
        weights: of its weights' gradients.
        losses: seconds of all micro-batches' losses.
        micros: micro-batches of a step.
    """

    all: float
    both: float
    ahead: float
    back: float
    weights: float
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
                max(work / pp, (others + micros * own) * both + losses)
                for work, both, _, _, _, losses, micros in self._sizes
            ]
        return [
            max(
                work / pp,
                others * ahead
                + max(0.0, others * back - min(pp, micros) * own * weights)
                + micros * own * both
                + losses,
            )
            for work, both, ahead, back, weights, losses, micros in self._sizes
        ]


def _size(rung: Rung, pieces: Pieces) -> _Size:
    ahead, back = pieces.forward.seconds, pieces.backward.seconds
    losses = rung.micros * pieces.loss.seconds
    return _Size(rung.seconds, ahead + back, ahead, back - pieces.weights, pieces.weights, losses, rung.micros)
