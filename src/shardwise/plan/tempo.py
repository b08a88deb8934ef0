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
from shardwise.plan.waits import Block, block_of
from shardwise.spec.layout import Schedule

#: Sizes of a micro-batch, each with the fewest forwards of a step, as far as more would keep more in flight: no size
#: that is fast enough is smaller and has fewer forwards than all of these.
Leanest = tuple[tuple[int, int], ...]


class _Rate(NamedTuple):
    """One size of micro-batch.

    Attributes:
        size: sequences.
        times: micro-batches of the batch, were they all of this size; no whole number.
        all: seconds of all blocks and the loss, for all sequences of the batch.
        losses: those of the loss.
    """

    size: int
    times: float
    all: float
    block: Block
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
            inside = room - rate.times * own * rate.block.both - rate.losses
            if inside <= 0 or rate.all * ROUNDING > within * pp:
                continue
            wait = others * rate.block.both
            if schedule == "zero_bubble":
                wait = rate.block.cut_wait(others, deferred=pp * own)
            micros = max(1, ceil(rate.times * wait * ROUNDING / inside))
            if micros <= -(-share // rate.size) and min(micros, most) < fewest:
                fewest = min(micros, most)
                found.append((rate.size, fewest))
        return tuple(found)


def _rate(size: int, pieces: Pieces, *, times: float, num_layers: int) -> _Rate:
    block, losses = block_of(pieces), times * pieces.loss.seconds
    return _Rate(size, times, num_layers * times * block.both + losses, block, losses)
