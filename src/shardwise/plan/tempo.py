"""What a copy's step takes at least, however many copies share the batch: of sizes of a micro-batch, those that are
fast enough on any part of a cluster, found once for all parts.

Seconds are those of one copy that would see the whole batch: with R copies a step takes at least an R-th of them, and
R times as many GPUs are paid for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from sys import maxsize
from typing import NamedTuple

from shardwise.plan.needs import ROUNDING
from shardwise.plan.pieces import Pieces
from shardwise.plan.traffic import Traffic
from shardwise.plan.waits import Block, block_of
from shardwise.spec.layout import Schedule

#: Sizes of a micro-batch, each with the fewest forwards of a step, as far as more would keep more in flight: no size
#: that is fast enough is smaller and has fewer forwards than all of these.
Leanest = tuple[tuple[int, int], ...]


class _Rate(NamedTuple):
    """One size of micro-batch, with seconds for all sequences of the batch.

    Attributes:
        size: sequences.
        times: micro-batches of the batch, were they all of this size; no whole number.
        one: of a block for one of them.
        all: of all blocks and the loss.
        block: of a block.
        losses: of the loss.
    """

    size: int
    times: float
    one: Block
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
        self._num_layers = num_layers
        self.least = min(rate.all for rate in self._rates)

    def in_turn(self, within: float, traffic: Traffic | None) -> Leanest:
        """The smallest size with which ranks that work in turn are through in so many seconds; with one forward.

        Args:
            within: the seconds.
            traffic: what each block sends for every micro-batch.
        """
        if self.least * ROUNDING > within:
            return ()
        return next((((rate.size, 1),) for rate in self._rates if self._all(rate, traffic) * ROUNDING <= within), ())

    def in_pipeline(
        self,
        schedule: Schedule,
        *,
        pp: int,
        others: int,
        own: int,
        share: int,
        within: float,
        traffic: Traffic | None,
    ) -> Leanest:
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
            traffic: what each block sends for every micro-batch.
        """
        if self.least * ROUNDING > within * pp:
            return ()
        # Differences of what is rounded are not to rule out what is just within.
        room, most = within / ROUNDING, 2 * pp
        found, fewest = list[tuple[int, int]](), maxsize
        for rate in self._rates:
            block = rate.block
            wait, inside = others * block.both, room - own * block.both - rate.losses
            if schedule == "zero_bubble":
                wait = block.cut_wait(others, deferred=pp * own)
            longest = wait / inside if inside > 0 else inf
            if traffic is not None:
                both = rate.times * rate.one.sending(traffic)
                inside = room - own * both
                longest = max(longest, others * both / inside) if inside > 0 else inf
            # As many forwards as the wait is longer than one may be.
            fast = self._all(rate, traffic) * ROUNDING <= within * pp
            if not fast or longest * ROUNDING > min(-(-share // rate.size), fewest - 1):
                continue
            micros = max(1, ceil(longest * ROUNDING))
            found.append((rate.size, min(micros, most)))
            fewest = min(micros, most)
            if fewest == 1:
                break
        return tuple(found)

    def _all(self, rate: _Rate, traffic: Traffic | None) -> float:
        """Seconds of one rank that has all layers, at least."""
        if traffic is None:
            return rate.all
        return max(rate.all, self._num_layers * rate.times * rate.one.sending(traffic))


def _rate(size: int, pieces: Pieces, *, times: float, num_layers: int) -> _Rate:
    one, losses = block_of(pieces), times * pieces.loss.seconds
    block = Block(*(times * seconds for seconds in one))
    return _Rate(size, times, one, num_layers * block.both + losses, block, losses)
