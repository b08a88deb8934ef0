"""Reduces gradients after the last backward of a step, where neither DDP nor FSDP has done it.

First over tensor-parallel ranks, then over replicas, last over the two copies of a tied weight at the ends of a
pipeline. The copies come last because a sum of two rounds alike in either order: three or more replicas, added on each
end by itself, would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shardwise.parallel.buckets import sum_over
from shardwise.parallel.ownership import local_part
from shardwise.parallel.tensor.slices import settle_gradients


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Called after the last backward of a step.

    Attributes:
        trained: the parameters whose gradients are reduced.
        tied: those of them that another stage holds a copy of.
        ends: the two ranks that hold the copies, or None.
        replicas: ranks to sum gradients over, or None where DDP or FSDP does.
        dealt: parameters of experts that are dealt among those ranks.
        expert_replicas: ranks that hold the same experts.
    """

    trained: tuple[nn.Parameter, ...]
    tied: tuple[nn.Parameter, ...] = ()
    ends: dist.ProcessGroup | None = None
    replicas: dist.ProcessGroup | None = None
    dealt: frozenset[nn.Parameter] = frozenset()
    expert_replicas: dist.ProcessGroup | None = None

    def __call__(self) -> None:
        """Completes every gradient."""
        settle_gradients(self.trained)
        if self.replicas is not None:
            _add_over(self.replicas, [p for p in self.trained if p not in self.dealt])
            if self.expert_replicas is not None:
                _add_over(self.expert_replicas, [p for p in self.trained if p in self.dealt])
        if self.ends is not None and self.tied:
            _add_over(self.ends, self.tied)


def _add_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Sums gradients over a group, in place; a missing gradient counts as zero."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    sum_over(group, [local_part(p.grad) for p in parameters if p.grad is not None])
