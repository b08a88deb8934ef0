"""One optimizer step's forwards and backwards: micro-batches in, gradients of the global batch out."""

from __future__ import annotations

import math
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
        """The id of a sample of this rank whose loss is not finite, found one micro-batch at a time."""
        for micro in batch.micro_batches:
            if not math.isfinite(self._forward(micro).item()):
                return next((sample for sample in micro.sample_ids if sample >= 0), None)
        return None

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
