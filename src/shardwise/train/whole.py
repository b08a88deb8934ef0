"""Whole tensors of a spread model, one after the other, on rank 0: what saved files are written from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.ownership import Ownership
from shardwise.train.guards import gather


def whole_tensors(
    parameters: list[tuple[str, nn.Parameter]], *, ownership: Ownership
) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Every parameter of the world by name, in the order of the stages; all ranks iterate together.

    Args:
        parameters: those of this rank that are wanted.
        ownership: tells the second copy of a tied weight, which is left out.

    Yields:
        (name, the whole tensor on the CPU on rank 0, None elsewhere). Only one is alive at a time.
    """
    world = ownership.world
    mine = {name: parameter for name, parameter in parameters if name not in ownership.copies}
    here = world.layout.coordinates(world.rank)
    described = {name: (tuple(p.shape), p.dtype) for name, p in mine.items()}
    for rank, stage in enumerate(gather(world, described)):
        at = world.layout.coordinates(rank)
        if (at.dp_replicate, at.dp_shard, at.cp, at.tp) != (0, 0, 0, 0):
            continue  # its stage has been told by another rank
        for name, (shape, dtype) in stage.items():
            whole = gathered(mine[name]) if here.pp == at.pp else None
            yield name, _to_first(whole, source=rank, shape=shape, dtype=dtype, ownership=ownership)


@torch.no_grad()
def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """The whole of a plain or sharded parameter; all ranks of a stage take part."""
    if not isinstance(parameter, DTensor):
        return parameter.detach()
    # Shards that lie in the host's memory come together on the mesh's device, one tensor at a time.
    shards = cast(DTensor, parameter.detach().to(parameter.device_mesh.device_type))
    # What FSDP2 sharded is a slice of tensor parallelism: it becomes whole before the slices do.
    slices = [Replicate() if isinstance(placed, _StridedShard) else placed for placed in shards.placements]
    return shards.redistribute(placements=slices).full_tensor()


def _to_first(
    whole: torch.Tensor | None, *, source: int, shape: tuple[int, ...], dtype: torch.dtype, ownership: Ownership
) -> torch.Tensor | None:
    world = ownership.world
    if source == 0:
        return whole.cpu() if whole is not None and world.is_first else None
    if world.rank == source and whole is not None:
        dist.send(whole.cpu().contiguous(), 0, group=world.control)
    if not world.is_first:
        return None
    received = torch.empty(shape, dtype=dtype)
    dist.recv(received, source, group=world.control)
    return received
