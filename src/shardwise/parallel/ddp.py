"""Data parallel without sharding: every rank holds everything, gradients are averaged while backward runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Where gradients lie in the communication buckets, which stay allocated as long as the process.

    Attributes:
        places: each parameter that is trained, and the view of a bucket that its gradient becomes; none without DDP.
    """

    places: Sequence[tuple[nn.Parameter, torch.Tensor]] = ()

    def __call__(self) -> None:
        """Gives each parameter without a gradient one of zeros, in its bucket.

        Called before a backward that DDP takes no notice of: it would make gradients beside the buckets, and these
        would be there for a second time until the last backward copies them.
        """
        for parameter, view in self.places:
            if parameter.grad is None:
                parameter.grad = view.zero_()


def apply_replication(root: nn.Module, *, group: ProcessGroup, device: torch.device) -> tuple[nn.Module, Buckets]:
    """Wraps a model whose weights are already equal on all ranks (every rank read the same files).

    Gradients are views of the communication buckets: no second copy of them exists. Buffers are constants that every
    rank computes alike (rotary frequencies); DDP would send them before each forward, so it is told to leave them.

    Returns:
        The root whose forward is called, and what is called before gradients accumulate.
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
    return replicated, _settle_buckets(replicated)


def _settle_buckets(replicated: DistributedDataParallel) -> Buckets:
    """Gives the buckets their final order now, by a backward pass over every parameter, the last one first.

    DDP lays its buckets anew in the first step of a process, by the order in which gradients came. With three ranks or
    more a sum's rounding depends on where in a bucket it stands, so that the first step after a resume would differ
    from the same step of a run that was never interrupted.
    """
    trained = [p for p in replicated.module.parameters() if p.requires_grad]
    replicated.reducer.prepare_for_backward([])
    torch.stack([p.view(-1)[0].float() for p in trained]).sum().mul(0).backward()
    replicated.reducer._rebuild_buckets()
    buckets = Buckets(places=[(p, p.grad) for p in trained if p.grad is not None])
    for parameter in trained:
        parameter.grad = None
    return buckets
