"""Reduces gradients: DDP's in the last backward of a step, where ranks hold all weights and see
other samples; else after it, where FSDP has not done so either.

After it, first over tensor-parallel ranks, then over replicas, last over the two copies of a tied
weight at the ends of a pipeline: a sum of two rounds alike in either order; three or more replicas,
added on each end by itself, would not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _take_tensors
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

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


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """(trained parameter, its gradient's view of a DDP bucket) for each; empty without DDP."""

    places: Sequence[tuple[nn.Parameter, torch.Tensor]] = ()

    def __call__(self) -> None:
        """Points missing gradients at their buckets, zeroed; `no_sync` would allocate others."""
        for parameter, view in self.places:
            if parameter.grad is None:
                parameter.grad = view.zero_()


def apply_replication(
    root: nn.Module, *, group: ProcessGroup, device: torch.device, idle: bool = False
) -> tuple[nn.Module, Buckets]:
    """Wraps a model with equal weights on all ranks in DDP. Returns the module to call, and what to
    call before gradients accumulate. `idle`: some weights may have no gradient in a step."""
    constants = [name for name, _ in root.named_buffers()]  # DDP would broadcast them before each forward
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(root, constants)
    devices = [device] if device.type == "cuda" else None
    # Gradients are views of the buckets, so that there is no second copy.
    options: dict[str, Any] = {"gradient_as_bucket_view": True, "init_sync": False, "find_unused_parameters": idle}
    replicated = DistributedDataParallel(root, device_ids=devices, process_group=group, **options)
    return replicated, _settle_buckets(replicated)


def _settle_buckets(replicated: DistributedDataParallel) -> Buckets:
    """Builds DDP's final buckets now, by a backward pass through every parameter, and not after the
    first step: the rounding of a sum of three depends on its place in a bucket, so a first step
    after a resume would be another."""
    trained = [p for p in replicated.module.parameters() if p.requires_grad]
    # One element of each makes a gradient for all of it; times 0, so that it is zeros.
    loss = torch.cat([p.view(-1)[:1].float() for p in trained]).sum().mul(0)
    replicated.reducer.prepare_for_backward([loss] if replicated.find_unused_parameters else [])
    loss.backward()
    replicated.reducer._rebuild_buckets()
    buckets = Buckets(places=[(p, p.grad) for p in trained if p.grad is not None])
    for parameter in trained:
        parameter.grad = None
    return buckets
