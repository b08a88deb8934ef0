"""ZeRO-1: weights and gradients whole on every rank, optimizer states for this rank's rows of them only.

The optimizer steps windows instead of weights. A window is a parameter of the same global shape, sharded by rows over
`dp_shard`, whose local part is a view of the whole weight's rows: stepping it changes the weight in place, its states
are as large as the rows, and everything that reads sharded parameters (checkpoints, guards) reads it too. After the
step the ranks exchange rows, so that all weights are whole again.

Under tensor parallelism all of this is said of the slice that a rank has of each weight: its window lies in the mesh as
FSDP2 lays what it shards of slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.mesh import World
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout import rows_of_shard

Named = list[tuple[str, nn.Parameter]]

#: Bytes that one exchange brings together: enough to fill a link, little beside what training holds anyway.
BUCKET_BYTES = 64 * 1024 * 1024

#: torch 2.13 has a new name for it, and warns of the one that earlier versions know.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What the optimizer steps, under the names of the trained parameters.

    Attributes:
        named: windows under ZeRO-1, otherwise the trained parameters themselves.
        wholes: the trained parameters, in the same order.
        mesh: the axes `dp_shard`, over which states are sharded, and `tp`; None where every state belongs to what its
            rank holds.
    """

    named: Named
    wholes: tuple[nn.Parameter, ...]
    mesh: DeviceMesh | None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is handed to the optimizer."""
        return [parameter for _, parameter in self.named]

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes every step of the optimizer take its gradients from the weights, and leave them whole again."""
        mesh = self.mesh
        if mesh is not None:
            optimizer.register_step_pre_hook(lambda *_: self._take_gradients(mesh))
            optimizer.register_step_post_hook(lambda *_: self._make_whole(mesh))

    def _take_gradients(self, mesh: DeviceMesh) -> None:
        """Windows see their rows of the whole gradients, without a copy.

        A weight without a gradient leaves its window's alone, so that states can be created by a step of zeros.
        """
        for window, whole in zip(self.parameters, self.wholes, strict=True):
            if whole.grad is not None:
                window.grad = _window(whole.grad, mesh)

    def _make_whole(self, mesh: DeviceMesh) -> None:
        """Brings all rows together, and frees the gradients, which are used up: `zero_grad` knows the windows only."""
        for whole in self.wholes:
            whole.grad = None
        exchange_rows([local_part(whole) for whole in self.wholes], axis=mesh["dp_shard"])


def stepped(trained: Named, *, world: World) -> Stepped:
    """What the optimizer of a spread model steps.

    Args:
        trained: (name, parameter) of what is trained, with its values.
    """
    wholes = tuple(parameter for _, parameter in trained)
    if not world.layout.shards_states_only:
        return Stepped(named=trained, wholes=wholes, mesh=None)
    mesh = world.mesh["dp_shard", "tp"]
    windows = [(name, nn.Parameter(_window(parameter.detach(), mesh))) for name, parameter in trained]
    return Stepped(named=windows, wholes=wholes, mesh=mesh)


def _window(whole: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """This rank's rows of a tensor, or of its slice of one, as a view that knows the whole's shape."""
    held, degree, index = local_part(whole), mesh.size(0), mesh.get_local_rank(0)
    before = min(index * rows_of_shard(held.shape[0], degree=degree, index=0), held.shape[0])
    rows = held.narrow(0, before, rows_of_shard(held.shape[0], degree=degree, index=index))
    sliced: Placement = whole.placements[0] if isinstance(whole, DTensor) else Replicate()
    sharded = _StridedShard(0, split_factor=mesh.size(1)) if sliced == Shard(0) else Shard(0)
    placements = [sharded, sliced]
    return DTensor.from_local(rows, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The same stretch of every rank's rows of one weight: where it begins in them, and how long it is at most."""

    whole: torch.Tensor
    share: int
    begin: int
    length: int

    def of(self, rank: int) -> torch.Tensor:
        """The stretch of one rank, a view; shorter or empty on the last ranks."""
        first = min(rank * self.share + self.begin, len(self.whole))
        end = min(first + self.length, (rank + 1) * self.share, len(self.whole))
        return self.whole[first : max(first, end)]


@torch.no_grad()
def exchange_rows(wholes: Sequence[torch.Tensor], *, axis: DeviceMesh) -> None:
    """Every rank's rows of every tensor become every other rank's too; the tensors are plain and contiguous."""
    degree, group, here = axis.size(), axis.get_group(), axis.get_local_rank()
    for bucket in _buckets(wholes, degree=degree):
        length = sum(span.length for span in bucket)
        mine = bucket[0].whole.new_empty(length)
        everyone = mine.new_empty(degree * length)
        _copy(bucket, mine, rank=here, out=True)
        _all_gather(everyone, mine, group=group)
        for rank, theirs in enumerate(everyone.view(degree, length)):
            if rank != here:
                _copy(bucket, theirs, rank=rank, out=False)


def _copy(bucket: list[_Span], flat: torch.Tensor, *, rank: int, out: bool) -> None:
    """Copies one rank's rows out of the weights into a flat buffer, or back."""
    at = 0
    for span in bucket:
        part = span.of(rank)
        place = flat[at : at + len(part)]
        _ = place.copy_(part) if out else part.copy_(place)
        at += span.length


def _buckets(wholes: Sequence[torch.Tensor], *, degree: int) -> Iterator[list[_Span]]:
    """Spans of one type, as many as fill a bucket; a large weight is cut into several."""
    for dtype in dict.fromkeys(whole.dtype for whole in wholes):
        room = most = max(1, BUCKET_BYTES // (degree * dtype.itemsize))
        bucket: list[_Span] = []
        for whole in wholes:
            if whole.dtype != dtype:
                continue
            share = rows_of_shard(whole.shape[0], degree=degree, index=0) * (whole.numel() // max(1, whole.shape[0]))
            begin = 0
            while begin < share:
                length = min(share - begin, room)
                bucket.append(_Span(whole=whole.detach().view(-1), share=share, begin=begin, length=length))
                begin, room = begin + length, room - length
                if room == 0:
                    yield bucket
                    bucket, room = [], most
        if bucket:
            yield bucket
