"""Collectives on activations between tensor-parallel ranks, forward and backward, on plain local tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

_SAME, _SUM, _SEQUENCE = Replicate(), Partial(), Shard(1)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """The collectives of one tensor-parallel group (`mesh` is the axis `tp`); activations are [batch, length,
    features]."""

    mesh: DeviceMesh

    def scatter_sequence(self, whole: torch.Tensor) -> torch.Tensor:
        """Keeps this rank's part of the sequence, whose length must be divisible; backward gathers."""
        return self._move(whole, before=_SAME, after=_SEQUENCE, gradient=_SEQUENCE)

    def gather_sequence(self, part: torch.Tensor, *, sliced_after: bool) -> torch.Tensor:
        """Gathers the sequence; backward keeps this rank's part, or reduce-scatters partial sums (`sliced_after`)."""
        if sliced_after:
            return self._move(part, before=_SEQUENCE, after=_SAME, gradient=_SUM)
        # It leaves the root module, and FSDP2 wants no views there.
        return self._move(part, before=_SEQUENCE, after=_SAME, gradient=_SAME).clone()

    def sum_to_sequence(self, summand: torch.Tensor) -> torch.Tensor:
        """Reduce-scatters partial sums over the sequence; backward gathers."""
        return self._move(summand, before=_SUM, after=_SEQUENCE, gradient=_SEQUENCE)

    def sum_to_all(self, summand: torch.Tensor) -> torch.Tensor:
        """All-reduces partial sums; backward moves nothing."""
        return self._move(summand, before=_SUM, after=_SAME, gradient=_SAME)

    def gather_features(self, part: torch.Tensor, *, size: int) -> torch.Tensor:
        """Gathers slices of the last dim, which may differ in size; backward keeps this rank's slice."""
        shape = torch.Size((*part.shape[:-1], size))
        stride = torch.empty(shape, device="meta").stride()
        slices = DTensor.from_local(part, self.mesh, [Shard(-1)], run_check=False, shape=shape, stride=stride)
        return slices.redistribute(placements=[_SAME]).to_local(grad_placements=[_SAME])

    def _move(self, local: torch.Tensor, *, before: Placement, after: Placement, gradient: Placement) -> torch.Tensor:
        moving = DTensor.from_local(local, self.mesh, [before], run_check=False)
        return moving.redistribute(placements=[after]).to_local(grad_placements=[gradient])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """This rank's rows of the head, from `first` on, and what its loss is compared by: [positions] over all ranks."""

    group: ProcessGroup
    first: int

    def largest(self, rows: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum over ranks, in place."""
        dist.all_reduce(rows, dist.ReduceOp.MAX, group=self.group)
        return rows

    def total(self, rows: torch.Tensor) -> torch.Tensor:
        """The elementwise sum over ranks, in place."""
        dist.all_reduce(rows, group=self.group)
        return rows
