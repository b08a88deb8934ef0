"""Gathers whole tensors of a parallelized model on rank 0, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.ownership import Ownership
from shardwise.train.guards.checks import gather


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A tensor of the whole model by its Hugging Face name and global shape, and the rank that sends it to rank 0."""

    name: str
    shape: tuple[int, ...]
    source: int


def wanted_tensors(parameters: list[tuple[str, nn.Parameter]], *, ownership: Ownership) -> list[Wanted]:
    """Every tensor of the whole model once, in the order of the stages; the same on all ranks."""
    world = ownership.world
    mine = {name: tuple(p.shape) for name, p in parameters if name not in ownership.copies}
    found: list[Wanted] = []
    for rank, stage in enumerate(gather(world, mine)):
        at = world.layout.coordinates(rank)
        if (at.dp_replicate, at.dp_shard, at.cp, at.tp) == (0, 0, 0, 0):  # one rank tells for its stage
            found += [Wanted(name=name, shape=shape, source=rank) for name, shape in stage.items()]
    return found


def whole_tensors(
    wanted: list[Wanted], parameters: list[tuple[str, nn.Parameter]], *, ownership: Ownership, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Gathers the wanted tensors one by one; all ranks iterate together. Yields (name, the whole tensor on the CPU), or
    (name, None) on ranks other than 0. A tensor that is on rank 0's CPU already is yielded as it is, and others cast to
    `dtype`: it is for the writer to cast it by parts."""
    world, mine = ownership.world, dict(parameters)
    here = world.layout.coordinates(world.rank)
    for one in wanted:
        whole = gathered(mine[one.name]) if here.pp == world.layout.coordinates(one.source).pp else None
        if whole is not None and (whole.is_cuda or one.source):
            whole = whole.to(dtype)
        if one.source and whole is not None and world.rank == one.source:
            dist.send(whole.cpu().contiguous(), 0, group=world.control)
        if one.source and world.is_first:
            whole = torch.empty(one.shape, dtype=dtype)
            dist.recv(whole, one.source, group=world.control)
        yield one.name, whole.cpu() if whole is not None and world.is_first else None


@torch.no_grad()
def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """The whole of a plain or sharded parameter; a collective of a stage's ranks."""
    if not isinstance(parameter, DTensor):
        return parameter.detach()
    # Shards that lie in the host's memory come together on the mesh's device, one tensor at a time.
    shards = cast(DTensor, parameter.detach().to(parameter.device_mesh.device_type))
    # What FSDP2 sharded is a slice of tensor parallelism: it becomes whole before the slices do.
    slices = [Replicate() if isinstance(placed, _StridedShard) else placed for placed in shards.placements]
    return shards.redistribute(placements=slices).full_tensor()
