"""What is left to do to gradients when the last backward is done, where neither DDP nor FSDP has done it.

In this order: partial sums over tensor-parallel ranks become whole, replicas are added, and the two copies of a tied
weight at the pipeline's ends are. Every one is a sum: the loss was divided by the tokens of the global batch. The ends
come last because two addends give the same sum in either order: three replicas or more, added in the buckets of one
end and in those of the other, would round differently, and the copies drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shardwise.parallel.buckets import sum_over
from shardwise.parallel.ownership import local_part
from shardwise.parallel.slices import settle_gradients


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Called after the last backward of a step; composed once, when the model is spread.

    Attributes:
        trained: the parameters whose gradients are meant.
        tied: those of them that another stage holds a copy of.
        ends: the two ranks that hold the copies; None on ranks and layouts without.
        replicas: ranks whose gradients nobody else adds up; None where DDP or FSDP does.
    """

    trained: tuple[nn.Parameter, ...]
    tied: tuple[nn.Parameter, ...] = ()
    ends: dist.ProcessGroup | None = None
    replicas: dist.ProcessGroup | None = None

    def __call__(self) -> None:
        """Makes every gradient that of the whole global batch."""
        settle_gradients(self.trained)
        if self.replicas is not None:
            _add_over(self.replicas, self.trained)
        if self.ends is not None and self.tied:
            _add_over(self.ends, self.tied)


def _add_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Adds gradients over a group, in place; a parameter without one counts as zero."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    sum_over(group, [local_part(p.grad) for p in parameters if p.grad is not None])
