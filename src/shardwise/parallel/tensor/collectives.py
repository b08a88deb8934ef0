"""Collectives on activations between tensor-parallel ranks, both ways, on plain local tensors.

They are torch's functional collectives, whose results selective recompute keeps; no DTensor is made
of activations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

_collectives = torch.ops._c10d_functional
_wait = _collectives.wait_tensor

Move = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Moves:
    """The collectives of one group of `tp`; activations are [batch, length, features], and between
    matrices a rank has its part of the length where it `splits_sequence`."""

    splits_sequence: ClassVar[bool] = True
    mesh: DeviceMesh

    def scatter_sequence(self, whole: torch.Tensor) -> torch.Tensor:
        """Keeps this rank's part of a sequence of divisible length; backward gathers."""
        return _moved(whole, self._own_part, self._gather)

    def gather_sequence(self, part: torch.Tensor, *, sliced_after: bool) -> torch.Tensor:
        """Gathers the sequence; backward keeps this part, or reduce-scatters (`sliced_after`)."""
        if sliced_after:
            return _moved(part, self._gather, self._sum_part)
        # It leaves the root module, and FSDP2 wants no views there.
        return _moved(part, self._gather, self._own_part).clone()

    def sum_to_sequence(self, summand: torch.Tensor) -> torch.Tensor:
        """Reduce-scatters partial sums over the sequence; backward gathers."""
        return _moved(summand, self._sum_part, self._gather)

    def sum_to_all(self, summand: torch.Tensor) -> torch.Tensor:
        """All-reduces partial sums; backward moves nothing."""
        return _moved(summand, self._sum, lambda gradient: gradient)

    def sum_to_whole(self, summand: torch.Tensor) -> torch.Tensor:
        """All-reduces partial sums; backward all-reduces gradients, which are partial sums too."""
        return _moved(summand, self._sum, self._sum)

    def keep_part(self, whole: torch.Tensor) -> torch.Tensor:
        """Keeps this rank's part of the sequence that all ranks computed alike; backward gathers,
        and gives each rank an equal share of the gradient: it is a partial sum from there on."""
        return _moved(whole, self._own_part, lambda gradient: self._gather(gradient) / self.mesh.size())

    def gather_features(self, part: torch.Tensor, *, size: int) -> torch.Tensor:
        """Gathers slices of the last dim, of any sizes; backward keeps this rank's slice."""
        shape = torch.Size((*part.shape[:-1], size))
        stride = torch.empty(shape, device="meta").stride()
        slices = DTensor.from_local(part, self.mesh, [Shard(-1)], run_check=False, shape=shape, stride=stride)
        return slices.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])

    @property
    def _group(self) -> tuple[int, str]:
        return self.mesh.size(), self.mesh.get_group().group_name

    def _own_part(self, whole: torch.Tensor) -> torch.Tensor:
        part = whole.chunk(self.mesh.size(), dim=1)[self.mesh.get_local_rank()]
        # A view would keep the whole sequence alive.
        return part.clone(memory_format=torch.contiguous_format)

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        degree, name = self._group
        batch, length, features = part.shape
        parts = _wait(_collectives.all_gather_into_tensor(part.contiguous(), degree, name))
        # One row's parts are in order. If moved, fake and real tensors differ in their strides.
        ordered = parts if batch == 1 else parts.view(degree, batch, length, features).transpose(0, 1)
        return ordered.reshape(batch, degree * length, features)

    def _sum_part(self, summand: torch.Tensor) -> torch.Tensor:
        degree, name = self._group
        batch, length, features = summand.shape
        parts = summand.reshape(batch, degree, length // degree, features).transpose(0, 1).contiguous()
        flat = parts.view(degree * batch, -1, features)
        return _wait(_collectives.reduce_scatter_tensor(flat, "sum", degree, name))

    def _sum(self, summand: torch.Tensor) -> torch.Tensor:
        return _wait(_collectives.all_reduce(summand.contiguous(), "sum", self._group[1]))


class WholeMoves(Moves):
    """Where each rank has the whole stream. Its gradient is a partial sum all the way from the head
    to the embedding, so that parameters which are not sliced need no other treatment."""

    splits_sequence = False

    def sum_to_sequence(self, summand: torch.Tensor) -> torch.Tensor:
        """As `sum_to_whole`, and so is `sum_to_all`."""
        return self.sum_to_whole(summand)

    sum_to_all = sum_to_sequence


class _Moved(torch.autograd.Function):
    """A tensor that is moved one way in forward, and its gradient another way in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, move: Move, back: Move) -> torch.Tensor:
        ctx.back = back
        return move(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.back(gradient), None, None


_moved: Callable[[torch.Tensor, Move, Move], torch.Tensor] = cast(Any, _Moved).apply


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of the head here, from `first`; what its loss compares: [positions] over all ranks."""

    group: dist.ProcessGroup
    first: int

    def largest(self, rows: torch.Tensor) -> torch.Tensor:
        """The elementwise maximum over ranks, in place."""
        dist.all_reduce(rows, dist.ReduceOp.MAX, group=self.group)
        return rows

    def total(self, rows: torch.Tensor) -> torch.Tensor:
        """The elementwise sum over ranks, in place."""
        dist.all_reduce(rows, group=self.group)
        return rows
