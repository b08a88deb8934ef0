"""Data parallel without sharding: ranks hold all weights; DDP averages gradients in backward."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel


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
