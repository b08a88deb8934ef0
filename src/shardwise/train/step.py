"""One optimizer step's forwards and backwards: micro-batches in, gradients of the global batch out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardwise.data.batches import GlobalBatch, MicroBatch
from shardwise.parallel.apply import Spread
from shardwise.parallel.mesh import World
from shardwise.train.loss import Targets


@dataclass(frozen=True, kw_only=True)
class Step:
    """Accumulates the gradients of one global batch.

    Every token of the batch weighs the same: the summed loss is divided by the trained tokens of the whole global
    batch before backward, and the reduction's own division by ranks is undone.
    """

    spread: Spread
    world: World

    def __call__(self, batch: GlobalBatch) -> float:
        """Runs all micro-batches of this rank.

        Returns:
            The loss of the global batch per trained token, the same on every rank.
        """
        scale = self.spread.gradient_divisor / batch.trained_tokens
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        for index, micro in enumerate(batch.micro_batches):
            with self.spread.synchronise(last=index == len(batch.micro_batches) - 1):
                loss = self._forward(micro)
                (loss * scale).backward()
            total += loss.detach()
        return self._over_data_ranks(total) / batch.trained_tokens

    @torch.no_grad()
    def evaluate(self, batch: GlobalBatch) -> float:
        """Summed loss of a batch over all ranks, without gradients."""
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        for micro in batch.micro_batches:
            total += self._forward(micro)
        return self._over_data_ranks(total)

    @torch.no_grad()
    def first_bad_sample(self, batch: GlobalBatch) -> int | None:
        """The id of the first sample of this rank whose own loss is not finite.

        Every sample takes a forward of its own, after the first bad one too: the others' forwards may gather weights
        that this rank holds, so each rank must take equally many.
        """
        bad = [
            sample
            for micro in batch.micro_batches
            for sample, loss in zip(micro.sample_ids, map(self._forward, _rows(micro)), strict=True)
            if not math.isfinite(loss.item()) and sample >= 0
        ]
        return bad[0] if bad else None

    def _forward(self, micro: MicroBatch) -> torch.Tensor:
        device = self.world.device
        return self.spread.module(
            input_ids=micro.input_ids.to(device, non_blocking=True),
            position_ids=micro.position_ids.to(device, non_blocking=True),
            targets=Targets.of(micro.labels, device=device),
        )

    def _over_data_ranks(self, total: torch.Tensor) -> float:
        dist.all_reduce(total, group=self.world.data_group)
        return total.item()


def _rows(micro: MicroBatch) -> Iterator[MicroBatch]:
    """Each sequence as a micro-batch of its own."""
    for row, sample in enumerate(micro.sample_ids):
        here = slice(row, row + 1)
        yield MicroBatch(
            input_ids=micro.input_ids[here],
            position_ids=micro.position_ids[here],
            labels=micro.labels[here],
            sample_ids=(sample,),
        )
