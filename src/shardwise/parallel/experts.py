"""Expert parallel: each rank holds some of the experts whole, and tokens travel to them and back (all-to-all)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from shardwise.parallel.tensor.slices import Slicer


def apply_experts(modules: Iterable[nn.Module], *, mesh: DeviceMesh) -> None:
    """Deals stacked experts on the meta device among the ranks of a mesh of one axis, whose size divides their number:
    modules as in transformers, called with hidden states [tokens, width], indices and weights [tokens, top_k]."""
    slicer = Slicer(mesh)
    for module in modules:
        held = cast(Any, module)
        slicer.slice(module, {name: Shard(0) for name in module._parameters})
        held.num_experts //= mesh.size()
        module.forward = partial(_exchanged, module.forward, mesh.get_group(), held.num_experts)


def _exchanged(
    forward: Callable[..., torch.Tensor],
    group: dist.ProcessGroup,
    held: int,
    hidden: torch.Tensor,
    chosen: torch.Tensor,
    scores: torch.Tensor,
) -> torch.Tensor:
    """Sends each token to the ranks of its experts, of which this one holds `held`, and adds what comes back."""
    top_k, degree = chosen.shape[1], group.size()
    experts, order = chosen.flatten().sort(stable=True)
    leaving = torch.bincount(experts, minlength=degree * held)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group)
    sent, received = (counts.view(degree, held).sum(1).tolist() for counts in (leaving, arriving))
    tokens = _travel(hidden[order // top_k], received, sent, group)
    own = torch.arange(held, device=hidden.device).repeat(degree).repeat_interleave(arriving)
    made = forward(tokens, own.unsqueeze(1), tokens.new_ones(len(own), 1))
    back = _travel(made, sent, received, group)
    by_token = back[order.argsort()].view(len(hidden), top_k, -1)
    return (by_token * scores.unsqueeze(2)).sum(1).to(hidden.dtype)


def _travel(rows: torch.Tensor, arriving: list[int], leaving: list[int], group: dist.ProcessGroup) -> torch.Tensor:
    travelled = all_to_all_single_autograd(rows.contiguous(), arriving, leaving, group)
    return torch.ops._c10d_functional.wait_tensor(travelled)
