"""Forwards and backwards of one optimizer step."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from shardwise.data.micro_batches import GlobalBatch, MicroBatch
from shardwise.models.routing import Balance
from shardwise.parallel.apply import Spread
from shardwise.parallel.context import taking_parts
from shardwise.parallel.mesh import World, to_device
from shardwise.parallel.single_stage import Inputs
from shardwise.train.cross_entropy import RowLoss, Targets
from shardwise.train.precision import LossScale
from shardwise.train.preference.preferences import Preferences, as_reference
from shardwise.train.preference.row_loss import RowLogProbs

#: Padding is left out where no more than this part of rows remains: to join these is a copy.
_MOST_LEFT = 0.95


@dataclass(frozen=True, kw_only=True)
class GradientAccumulator:
    """Accumulates gradients of a global batch, in which all trained tokens weigh the same.
    `keeps_casts`: weights are cast once for all micro-batches; `scale`: the loss's in float16;
    `balance`, `leaves_padding`: as of `TrainedModel`; `preferences`: for a loss of pairs, rows."""

    spread: Spread
    world: World
    keeps_casts: bool
    scale: LossScale
    balance: Balance | None = None
    leaves_padding: bool = False
    preferences: Preferences | None = None

    def units(self, batch: GlobalBatch) -> int:
        """What the summed loss is divided by: trained tokens, or pairs or rows of preferences."""
        return batch.trained_tokens if self.preferences is None else len(batch.sample_ids)

    @property
    def enlarged(self) -> float:
        """By which gradients are too large after a step. Division by DDP and FSDP is undone before
        backward, but where the loss is scaled, lest float16 overflow sooner on many ranks."""
        return 1.0 if self.scale.is_fixed else self.scale.value / self.spread.gradient_divisor

    def __call__(self, batch: GlobalBatch) -> torch.Tensor:
        """Runs all micro-batches of this rank; the loss of the global batch per unit, on every
        rank: a float64 scalar on its device, which the host has not waited for."""
        inputs, units = self._with_losses(batch), self.units(batch)
        uneven = None if self.balance is None else self._count_routes(self.balance, inputs)
        # Casts live until the outermost context ends, this one; autocast is on in forwards alone.
        if uneven is not None and self.preferences is not None:
            self.preferences.figures.zero_()  # of the forward that counted
        with torch.autocast(self.world.device.type, enabled=False) if self.keeps_casts else nullcontext():
            mine = self.spread.gradients(inputs, scale=self.enlarged / units)
        # The loss alone: gradients were summed by FSDP, DDP or `finish`.
        dist.all_reduce(mine)
        loss = mine / units
        return loss if uneven is None else loss + uneven

    def _count_routes(self, balance: Balance, inputs: list[Inputs]) -> torch.Tensor:
        """The loss of routers over the global batch, by a forward that draws nothing."""
        device = self.world.device
        balance.seen.zero_()
        balance.counting = True
        # The forward that trains must draw as it would without this one.
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            self._losses(inputs)
        balance.counting = False
        dist.all_reduce(balance.seen)
        return balance.settle(factor=self.enlarged * self.spread.gradient_divisor)

    def evaluate(self, batch: GlobalBatch) -> float:
        """Summed loss of a batch over all ranks, without gradients."""
        summed = torch.stack(self._losses(self._with_losses(batch, evaluates=True))).double().sum()
        dist.all_reduce(summed)
        return summed.item()

    def begin_evaluation(self) -> None:
        """Called before the batches of an evaluation."""
        if self.preferences is not None:
            self.preferences.begin_evaluation(self.outputs)

    def figures(self, *, prefix: str = "") -> dict[str, float]:
        """What is recorded beside the loss, of the last step or evaluation, by every rank."""
        if self.preferences is None:
            return {}
        return {prefix + name: value for name, value in self.preferences.recorded().items()}

    def outputs(self, micros: Sequence[MicroBatch], *, adapters_off: bool = False) -> list[torch.Tensor | None]:
        """Log-probabilities [rows] of micro-batches, without gradients; None of a stage without."""
        asks = [RowLogProbs(num_sums=micro.num_rows, group=self.world.row_group) for micro in micros]
        inputs = self._inputs(micros, asks)
        with as_reference(self.spread.modules, adapters_off=adapters_off):
            return [*self.spread.outputs(inputs)]

    def _losses(self, inputs: list[Inputs]) -> list[torch.Tensor]:
        """The summed loss of each micro-batch, without gradients; 0 on ranks that have none."""
        nothing = torch.zeros((), device=self.world.device)
        return [self.world.counted(nothing if made is None else made) for made in self.spread.outputs(inputs)]

    def _with_losses(self, batch: GlobalBatch, *, evaluates: bool = False) -> list[Inputs]:
        if self.preferences is None:
            return self._inputs(batch.micro_batches)
        row_losses = self.preferences.row_losses(batch, self.outputs, evaluates=evaluates)
        return self._inputs(batch.micro_batches, row_losses)

    def first_bad_sample(self, batch: GlobalBatch) -> int | None:
        """The id of this rank's first sample whose own loss is not finite. Every rank calls it."""
        # Row by row: in a micro-batch one bad row makes the sum of all not finite.
        rows = [micro.alone(at) for micro in batch.micro_batches for at in range(len(micro.sample_ids))]
        losses = self._losses(self._with_losses(replace(batch, micro_batches=tuple(rows))))
        found = [row.sample_ids[0] for row, loss in zip(rows, losses, strict=True) if not math.isfinite(loss.item())]
        return next((sample for sample in found if sample >= 0), None)

    def _inputs(self, micros: Sequence[MicroBatch], row_losses: Sequence[RowLoss] | None = None) -> list[Inputs]:
        device = self.world.device
        # This rank's parts of whole rows [batch, length], whose labels are shifted already.
        own = taking_parts(self.world)

        def targets(micro: MicroBatch, row_loss: RowLoss | None) -> Targets:
            if self.preferences is None:
                return Targets.of(own(micro.labels), device=device)
            labels, rows = self.preferences.targets(micro, row_loss)
            return Targets.of(own(labels), device=device, rows=own(rows), row_loss=row_loss)

        return [
            Inputs(
                input_ids=to_device(own(micro.input_ids), device),
                position_ids=to_device(own(micro.position_ids), device),
                targets=targets(micro, row_loss),
                real=None if self.balance is None else to_device(own(micro.real), device),
                places=_places(own(micro.real), device) if self.leaves_padding else None,
                documents=micro.documents and replace(micro.documents, ends=to_device(micro.documents.ends, device)),
            )
            for micro, row_loss in zip(micros, row_losses or [None] * len(micros), strict=True)
        ]


def _places(real: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """Where flattened rows hold no padding; None where hardly any, or nothing else, is."""
    places = real.flatten().nonzero().squeeze(1)
    return to_device(places, device) if 0 < len(places) <= _MOST_LEFT * real.numel() else None
