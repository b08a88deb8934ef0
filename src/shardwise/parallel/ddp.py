"""Data parallel without sharding: every rank holds everything, gradients are averaged while backward runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel


def apply_replication(root: nn.Module, *, group: ProcessGroup, device: torch.device) -> nn.Module:
    """Wraps a model whose weights are already equal on all ranks (every rank read the same files).

    Gradients are views of the communication buckets: no second copy of them exists. Buffers are constants that every
    rank computes alike (rotary frequencies); DDP would send them before each forward, so it is told to leave them.
    """
    constants = [name for name, _ in root.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(root, constants)
    replicated = DistributedDataParallel(
        root,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        init_sync=False,
    )
    _settle_buckets(replicated)
    return replicated


def _settle_buckets(replicated: DistributedDataParallel) -> None:
    """Gives the buckets their final order now, by a backward pass over every parameter, the last one first.

    DDP lays its buckets anew in the first step of a process, by the order in which gradients came. With three ranks or
    more a sum's rounding depends on where in a bucket it stands, so that the first step after a resume would differ
    from the same step of a run that was never interrupted.
    """
    trained = [p for p in replicated.module.parameters() if p.requires_grad]
    replicated.reducer.prepare_for_backward([])
    torch.stack([p.view(-1)[0].float() for p in trained]).sum().mul(0).backward()
    replicated.reducer._rebuild_buckets()
    for parameter in trained:
        parameter.grad = None
