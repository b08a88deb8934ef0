"""Who counts what: of all ranks that hold the same elements, exactly one owns them.

Norms, checkpoints and saved files are sums and sets over the world; each element must be in them once, however many
ranks hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.mesh import World
from shardwise.spec.layout import AXES


def sharded_axes(tensor: torch.Tensor) -> frozenset[str]:
    """The axes of the mesh along which a tensor is cut; none for a plain one."""
    if not isinstance(tensor, DTensor):
        return frozenset()
    names = tensor.device_mesh.mesh_dim_names or ()
    placed = zip(names, tensor.placements, strict=True)
    return frozenset(name for name, placement in placed if isinstance(placement, Shard | _StridedShard))


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Which of the tensors that this rank holds it counts.

    Attributes:
        copies: names of the weights here that another pipeline stage holds and counts (tied embeddings).
    """

    world: World
    copies: frozenset[str] = frozenset()

    def counts(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether this rank counts its part of a tensor: it is the first on every axis along which that is alike.

        Args:
            name: of the parameter; an optimizer state goes by its parameter's.
            tensor: plain or sharded. Stages hold different tensors, so the pipeline axis is not asked.
        """
        at = self.world.layout.coordinates(self.world.rank)
        alike = set(AXES) - {"pp"} - sharded_axes(tensor)
        return name not in self.copies and all(getattr(at, axis) == 0 for axis in alike)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor this rank holds, live and without gradient history."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
