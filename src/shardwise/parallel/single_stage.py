"""A model that each rank runs from its first to its last block: every layout without pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardwise.parallel.ddp import Buckets
from shardwise.parallel.deferred_reduction import reduce_at_last
from shardwise.parallel.gradients import Finish
from shardwise.parallel.interface import Inputs
from shardwise.parallel.mesh import World
from shardwise.spec.layout.execution import Execution


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """One root module, called once for each micro-batch.

    Attributes:
        module: the root; sharded, sliced or wrapped by DDP.
        gradient_divisor: by which DDP or FSDP divide gradients; undone here.
        execution: says what FSDP reduces at the last micro-batch alone.
        begin: called before gradients accumulate.
        finish: called after the last backward.
    """

    module: nn.Module
    world: World
    gradient_divisor: int
    execution: Execution
    begin: Buckets
    finish: Finish

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The root module."""
        return (self.module,)

    @property
    def kept_gradients(self) -> Sequence[torch.Tensor]:
        """What of gradients is there between steps: DDP's buckets."""
        return [view for _, view in self.begin.places]

    def gradients(self, micros: Sequence[Inputs], *, scale: float) -> torch.Tensor:
        """Accumulates the gradients of `scale` times the summed loss of all ranks' micro-batches. Returns a float64
        scalar: this rank's part of the summed loss; all ranks' parts add up to it."""
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        if len(micros) > 1:
            self.begin()
        for index, inputs in enumerate(micros):
            last = index == len(micros) - 1
            reduce_at_last(self.module, self.execution, last=last)
            with self._synchronise(last=last):
                loss = self._call(inputs)
                (loss * (scale * self.gradient_divisor)).backward()
            total += loss.detach()
        self.finish()
        return self.world.counted(total)

    @torch.no_grad()
    def losses(self, micros: Sequence[Inputs]) -> list[torch.Tensor]:
        """The summed loss of each micro-batch, without gradients; zeros on ranks that compute or count none."""
        return [self.world.counted(self._call(inputs)) for inputs in micros]

    def _call(self, inputs: Inputs) -> torch.Tensor:
        return self.module(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            targets=inputs.targets,
            documents=inputs.documents,
            real=inputs.real,
        )

    def _synchronise(self, *, last: bool) -> AbstractContextManager[None]:
        """DDP reduces once, at the last micro-batch."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()  # pyright: ignore[reportReturnType]  # torch does not annotate it
        return nullcontext()
