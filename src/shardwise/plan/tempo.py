"""What a copy's step takes at least, however many copies share the batch: of sizes of a micro-batch, those that are
fast enough on any part of a cluster, found once for all parts.

Seconds are those of one copy that would see the whole batch: with R copies a step takes at least an R-th of them, and
R times as many GPUs are paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from shardwise.plan.needs import ROUNDING
from shardwise.plan.pieces import Pieces
from shardwise.spec.layout import Schedule

#: Sizes of a micro-batch, each with the fewest forwards of a step, as far as more would keep more in flight: no size
#: that is fast enough is smaller and has fewer forwards than all of these.
Leanest = tuple[tuple[int, int], ...]


class _Rate(NamedTuple):
    """Of one size of micro-batch, seconds for all sequences of the batch.

    Attributes:
        size: sequences.
        all: of all blocks and the loss.
        both: of a block's forward and whole backward; as the next three.
        ahead: of its forward.
        back: of its backward to the input.
        weights: of its weights' gradients.
        losses: of the loss.
    """

    size: int
    all: float
    both: float
    ahead: float
    back: float
    weights: float
    losses: float


class Tempo:
    """The sizes that one spread's micro-batches may have.

    `least` is what all blocks and the loss take with the size for which that is least.

    Args:
        sizes: with their pieces.
        batch: sequences of a step.
        num_layers: of the model.
    """

    def __init__(self, sizes: Sequence[tuple[int, Pieces]], *, batch: int, num_layers: int) -> None:
        self._rates = [_rate(size, pieces, times=batch / size, num_layers=num_layers) for size, pieces in sizes]
        self.least = min(rate.all for rate in self._rates)

    def in_turn(self, within: float) -> Leanest:
        """The smallest size with which ranks that work in turn are through in so many seconds; with one forward."""
        if self.least * ROUNDING > within:
            return ()
        return next((((rate.size, 1),) for rate in self._rates if rate.all * ROUNDING <= within), ())

    def in_pipeline(self, schedule: Schedule, *, pp: int, others: int, own: int, share: int, within: float) -> Leanest:
        """The leanest sizes with which a pipeline may be through in so many seconds.

        Of a step with m forwards a share of one m-th is what the last rank waits for: its first micro-batch, and the
        others for its last gradient (`plan.waits`). So it takes so many that the wait is short enough.

        Args:
            schedule: the order of the pipeline.
            pp: its stages.
            others: blocks of the first stages of all ranks but the last.
            own: those of all stages of the last.
            share: the most sequences that a copy sees in a step.
            within: the seconds.
        """
        if self.least * ROUNDING > within * pp:
            return ()
        # Differences of what is rounded are not to rule out what is just within.
        room, most = within / ROUNDING, 2 * pp
        found, fewest = list[tuple[int, int]](), share + 1
        for rate in self._rates:
            inside = room - own * rate.both - rate.losses
            if inside <= 0 or rate.all * ROUNDING > within * pp:
                continue
            wait = others * rate.both
            if schedule == "zero_bubble":
                wait = others * rate.ahead + max(0.0, others * rate.back - pp * own * rate.weights)
            micros = max(1, ceil(wait * ROUNDING / inside))
            if micros <= -(-share // rate.size) and min(micros, most) < fewest:
                fewest = min(micros, most)
                found.append((rate.size, fewest))
        return tuple(found)


def _rate(size: int, pieces: Pieces, *, times: float, num_layers: int) -> _Rate:
    ahead, back, losses = pieces.forward.seconds, pieces.backward.seconds, times * pieces.loss.seconds
    return _Rate(
        size=size,
        all=num_layers * times * (ahead + back) + losses,
        both=times * (ahead + back),
        ahead=times * ahead,
        back=times * (back - pieces.weights),
        weights=times * pieces.weights,
        losses=losses,
    )
