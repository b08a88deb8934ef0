"""A model that each rank runs from first to last block: every layout without pipeline stages."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardwise.parallel.fsdp import reduce_at_last
from shardwise.parallel.gradients import Buckets, Finish
from shardwise.parallel.mesh import World
from shardwise.spec.layout.execution import Execution


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One micro-batch on this rank's device, as the root module takes it: tensors [batch, length],
    `targets` of its loss, where `documents` of packed rows lie, what is `real`, no padding, if that
    matters, and its `places` in the flattened rows, int64 [n], None for all. Equal on all ranks of
    a data-parallel share; context parallelism gives each its parts of the rows."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: Any = None
    documents: Any = None
    real: torch.Tensor | None = None
    places: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class WholeModel:
    """One root module, sharded, sliced or in DDP, called for each micro-batch. `gradient_divisor`:
    by which DDP or FSDP divide gradients, undone here; `execution`: what FSDP reduces at the last
    one; `begin`: called before gradients accumulate; `finish`: after the last backward."""

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

    def gradients(self, micros: Sequence[Inputs], *, scale: float) -> torch.Tensor:
        """Accumulates gradients of `scale` times the summed loss of all ranks' micro-batches.
        Returns a float64 scalar: this rank's part of the summed loss; all parts add up to it."""
        total = torch.zeros((), device=self.world.device, dtype=torch.float64)
        if len(micros) > 1:
            self.begin()
        for index, inputs in enumerate(micros):
            last = index == len(micros) - 1
            reduce_at_last(self.module, self.execution, last=last)
            module: Any = self.module
            waits = isinstance(module, DistributedDataParallel) and not last  # DDP reduces once, at the last one
            with module.no_sync() if waits else nullcontext():
                loss = self.module(**vars(inputs))
                (loss * (scale * self.gradient_divisor)).backward()
            total += loss.detach()
        self.finish()
        return self.world.counted(total)

    @torch.no_grad()
    def outputs(self, micros: Sequence[Inputs]) -> list[torch.Tensor]:
        """What the root module makes of each micro-batch, without gradients."""
        return [self.module(**vars(inputs)) for inputs in micros]
