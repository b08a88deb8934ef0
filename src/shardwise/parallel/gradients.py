"""Reduces gradients after the last backward of a step, where neither DDP nor FSDP has done it.

First over tensor-parallel ranks, then over replicas, last over the two copies of a tied weight at
the ends of a pipeline: a sum of two rounds alike in either order; three or more replicas, added on
each end by itself, would not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _take_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.execution import FLAT_BYTES


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Completes the gradients of `trained` after the last backward of a step. `tied`: those that
    another stage holds a copy of; `ends`: the two ranks that hold the copies, or None; `replicas`:
    ranks to sum over, or None where DDP or FSDP does; `dealt`: experts that are dealt among those;
    `expert_replicas`: ranks that hold the same experts."""

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


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """All-reduces partial gradients of parameters that tensor parallelism replicates."""
    waiting: dict[DeviceMesh, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
            waiting[gradient.device_mesh].append(parameter)
    for mesh, summed in waiting.items():
        # Cloned, because autograd may share memory between gradients.
        summands = [cast(DTensor, parameter.grad).to_local().clone() for parameter in summed]
        _sum_over(mesh.get_group(), summands)
        for parameter, its_sum in zip(summed, summands, strict=True):
            parameter.grad = DTensor.from_local(its_sum, mesh, [Replicate()], run_check=False)


def _add_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Sums gradients over a group, in place; a missing gradient counts as zero."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    _sum_over(group, [local_part(p.grad) for p in parameters if p.grad is not None])


@torch.no_grad()
def _sum_over(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
    """All-reduces tensors in place: flat messages of `FLAT_BYTES` by dtype; a larger one alone."""
    for bucket in _take_tensors(tensors, FLAT_BYTES):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat, group=group)
        sums = flat.split([tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [one.view_as(tensor) for one, tensor in zip(sums, bucket, strict=True)])  # pyright: ignore[reportPrivateImportUsage]
