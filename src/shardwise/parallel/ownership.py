"""Ownership: one of all ranks with the same elements counts them, in norms, checkpoints, files."""

from dataclasses import asdict, dataclass

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.mesh import World


def sharded_dims(tensor: torch.Tensor) -> dict[int, int]:
    """Which dim of a tensor each axis of its mesh cuts, by axis number; none for a plain tensor."""
    if not isinstance(tensor, DTensor):
        return {}
    cuts = [(axis, cut) for axis, cut in enumerate(tensor.placements) if isinstance(cut, Shard | _StridedShard)]
    return {axis: cut.dim % tensor.ndim for axis, cut in cuts}


def sharded_axes(tensor: torch.Tensor) -> frozenset[str]:
    """The mesh axes along which a tensor is sharded; none for a plain tensor."""
    names = (tensor.device_mesh.mesh_dim_names or ()) if isinstance(tensor, DTensor) else ()
    named = {names[number] for number in sharded_dims(tensor)}
    # One axis was made of two (`World.shards`).
    return frozenset(named - {"dp_shard_cp"} | ({"dp_shard", "cp"} if "dp_shard_cp" in named else set()))


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Which tensors this rank owns; `copies` are weights of another stage (tied embeddings)."""

    world: World
    copies: frozenset[str] = frozenset()

    def counts(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether this rank owns its part of a tensor: it is first on every axis replicating it."""
        sharded, at = sharded_axes(tensor), asdict(self.world.layout.coordinates(self.world.rank))
        # Dealt experts lie on another mesh of the same ranks.
        if "ep" in sharded and (mesh := self.world.expert_mesh) is not None:
            at = {axis: mesh.get_local_rank(axis) for axis in mesh.mesh_dim_names or ()}
        return name not in self.copies and all(at[axis] == 0 for axis in at.keys() - {"pp"} - sharded)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The local part of a plain or sharded tensor, detached."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
