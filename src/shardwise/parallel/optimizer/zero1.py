"""ZeRO-1: whole weights and gradients on every rank, sharded optimizer states.

The optimizer steps windows: views of this rank's rows of each weight, or of its slice, sharded over
`World.shards` and placed as FSDP2 does. After the step the ranks exchange rows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.parallel.mesh import World, all_gather_single, side_by_side
from shardwise.parallel.optimizer.stepped import Detour, Named
from shardwise.parallel.ownership import sharded_axes
from shardwise.spec.layout.axes import rows_of_shard
from shardwise.spec.layout.execution import FLAT_BYTES


class Windows(Detour):
    """Windows of this rank's rows of whole weights: a detour (`parallel/optimizer/stepped.py`).
    `weights`: local parts of trained parameters, contiguous, alike on every rank but for slices;
    `meshes`: of each, the axes over which states are sharded and it is sliced: `World.shards` and
    `tp`, or of dealt experts those that hold the same, and `ep`."""

    def __init__(self, weights: Detour, *, world: World) -> None:
        self.weights = weights.named
        dense = side_by_side(world.shards, world.mesh["tp"])
        dealt = None if world.expert_mesh is None else world.expert_mesh["dp_mod_ep", "ep"]
        are_dealt = ["ep" in sharded_axes(placed) for placed in weights.placed]
        self.meshes = [dealt if dealt is not None and is_dealt else dense for is_dealt in are_dealt]
        named = zip(self.weights, self.meshes, strict=True)
        self.named: Named = [(name, nn.Parameter(_rows(whole.detach(), mesh))) for (name, whole), mesh in named]
        triples = zip(self.named, weights.placed, self.meshes, strict=True)
        self.placed: list[torch.Tensor] = [_placed(one.detach(), whole, mesh) for (_, one), whole, mesh in triples]

    def before_step(self) -> None:
        """Makes each window's gradient a view of the whole gradient's rows."""
        for (_, window), (_, whole), mesh in zip(self.named, self.weights, self.meshes, strict=True):
            if whole.grad is not None:
                window.grad = _rows(whole.grad, mesh)

    def after_step(self) -> None:
        """Exchanges rows, and frees gradients, which `zero_grad` of the windows would not reach."""
        for _, whole in self.weights:
            whole.grad = None
        for mesh in dict.fromkeys(self.meshes):
            alike = (whole for (_, whole), one in zip(self.weights, self.meshes, strict=True) if one is mesh)
            (first, *_) = mesh.mesh_dim_names or ("",)
            exchange_rows([whole.detach() for whole in alike], axis=mesh[first])


def _rows(whole: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's rows of a plain tensor, as a view."""
    degree, index = mesh.size(0), mesh.get_local_rank(0)
    # The last ranks may have no rows: the first ones have as many as `torch.chunk` gives them.
    before = min(index * rows_of_shard(whole.shape[0], degree=degree, index=0), whole.shape[0])
    return whole.narrow(0, before, rows_of_shard(whole.shape[0], degree=degree, index=index))


def _placed(rows: torch.Tensor, whole: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """This rank's rows of a parameter, which may be sliced, with the parameter's shape."""
    sliced: Placement = whole.placements[0] if isinstance(whole, DTensor) else Replicate()
    # A slice is cut, not the whole weight, in which the rows of a shard lie apart then.
    sharded = _StridedShard(0, split_factor=mesh.size(1)) if sliced == Shard(0) else Shard(0)
    return DTensor.from_local(rows, mesh, [sharded, sliced], run_check=False, shape=whole.shape, stride=whole.stride())


class _Span(NamedTuple):
    """The same range of every rank's rows of one weight."""

    whole: torch.Tensor
    share: int
    begin: int
    length: int

    def of(self, rank: int) -> torch.Tensor:
        """The range of one rank, a view; shorter or empty on the last ranks."""
        first = min(rank * self.share + self.begin, len(self.whole))
        end = min(first + self.length, (rank + 1) * self.share, len(self.whole))
        return self.whole[first : max(first, end)]


@torch.no_grad()
def exchange_rows(wholes: Sequence[torch.Tensor], *, axis: DeviceMesh) -> None:
    """All-gathers every rank's rows of plain, contiguous tensors over `axis`, in place, in messages
    of `FLAT_BYTES` of their own type: these weights are the masters on every rank."""
    for bucket in _buckets(wholes, degree=axis.size()):
        _exchange(bucket, axis)


def _exchange(bucket: list[_Span], axis: DeviceMesh) -> None:
    degree, here, length = axis.size(), axis.get_local_rank(), sum(span.length for span in bucket)
    # A rank's rows of several weights do not lie side by side, as a message must.
    mine = bucket[0].whole.new_empty(length)
    everyone = mine.new_empty(degree * length)
    _copy(bucket, mine, rank=here, out=True)
    all_gather_single(everyone, mine, group=axis.get_group())
    for rank, theirs in enumerate(everyone.view(degree, length)):
        if rank != here:
            _copy(bucket, theirs, rank=rank, out=False)


def _copy(bucket: list[_Span], flat: torch.Tensor, *, rank: int, out: bool) -> None:
    """Copies one rank's rows out of the weights into a flat buffer, or back."""
    parts = [span.of(rank) for span in bucket]
    places = [place[: len(part)] for place, part in zip(flat.split([s.length for s in bucket]), parts, strict=True)]
    torch._foreach_copy_(*((places, parts) if out else (parts, places)))  # pyright: ignore[reportPrivateImportUsage]


def _buckets(wholes: Sequence[torch.Tensor], *, degree: int) -> Iterator[list[_Span]]:
    """Spans of one dtype, as many as fill a bucket; a large weight is cut into several."""
    for dtype in dict.fromkeys(whole.dtype for whole in wholes):
        room = most = max(1, FLAT_BYTES // (degree * dtype.itemsize))
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
