"""What a rank holds between steps: weights, gradients and optimizer states. FSDP2 cuts along the
first dim as `torch.chunk` does, so that ranks differ, and every distinct one is counted."""

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from shardwise.plan.work.inventory import Unit
from shardwise.plan.work.parts import RankPart, bounds
from shardwise.plan.work.tensors import DtypeBytes, Tensor
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.layout.optimizers import OptimizerName


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes of ranks that hold alike.

    Attributes:
        part: what of the model they hold before sharding.
        shards: their indices on the dp_shard axis (with cp, on both).
        gradients: all of them, at the end of a step's backward.
        block_gradients: those of the block that has fewest.
        padding: rows of zeros that make all shards of a tensor as long as the first.
        on_host: what offload puts into the host's memory instead, at most.
    """

    part: RankPart
    shards: range
    weights: int
    gradients: int
    block_gradients: int
    optimizer: int
    padding: int
    on_host: int = 0

    @property
    def stored(self) -> int:
        """Bytes of weights with their padding, which FSDP2 keeps in one piece of memory."""
        return self.weights + self.padding

    def ranks(self, layout: Layout) -> tuple[int, ...]:
        """The ranks that hold this."""
        degree = layout.shard_degree
        return tuple(
            self.part.pp * layout.ranks_per_stage + (outer * degree + shard) * layout.tp + tp
            for outer in range(layout.ranks_per_stage // (degree * layout.tp))
            for shard in self.shards
            for tp in self.part.tp
        )


def holdings(
    part: RankPart,
    execution: Execution,
    *,
    types: DtypeBytes,
    momentum: bool = False,
    first_only: bool = False,
    host_apart: bool = True,
) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank of a part along the dp_shard axis. `first_only`: only
    the first, which holds at least as much as any other (except AdamW in 8 bits); `host_apart`: the
    host's memory is not the device's, as it is where CPU processes train."""
    degree, by_rows = execution.layout.shard_degree, execution.layout.weight_shards == 1
    uneven = (t.rows for t in part.inventory.tensors if t.ep == 1 and (by_rows or not t.cut_inside(degree)))
    spans = (range(begin, end) for begin, end in itertools.pairwise(bounds(uneven, degree)))
    if first_only:
        spans = (range(1),)
    found = (_holding(part, shards, execution, types=types, momentum=momentum) for shards in spans)
    if execution.offload == "none":
        return tuple(found)
    return tuple(_offloaded(held, execution, types=types, host_apart=host_apart) for held in found)


def _holding(part: RankPart, shards: range, execution: Execution, *, types: DtypeBytes, momentum: bool) -> Holding:
    weights, states, at = execution.layout.weight_shards, execution.layout.shard_degree, shards.start
    cut = (weights, at if weights > 1 else 0, states, at)  # whole weights are every rank's
    shares = [
        (count, _share(unit, cut, types=types, optimizer=execution.optimizer, momentum=momentum))
        for count, unit in part.inventory.units
    ]
    return Holding(
        part=part,
        shards=shards,
        weights=round(sum(count * share.weights for count, share in shares)),
        gradients=sum(count * share.gradients for count, share in shares),
        block_gradients=min((share.gradients for count, share in shares[:-1] if count), default=0),
        optimizer=sum(count * share.optimizer for count, share in shares),
        padding=round(sum(count * share.padding for count, share in shares)),
    )


class _Share(NamedTuple):
    """Bytes of one unit on one rank."""

    weights: float
    gradients: int
    optimizer: int
    padding: float


@lru_cache(maxsize=8192)
def _share(
    unit: Unit, cut: tuple[int, int, int, int], *, types: DtypeBytes, optimizer: OptimizerName, momentum: bool
) -> _Share:
    """`cut`: degree and index of weights, and of optimizer states."""
    degree, index, of_states, at = cut
    weights = padding = 0.0
    trained = states = 0
    for tensor in unit.tensors:
        width = tensor.element_bytes(types)
        kept = tensor.kept(degree=degree, index=index)
        weights += kept * width
        padding += (tensor.kept(degree=degree, index=0) - kept) * width
        if tensor.trained:
            trained += kept
            # ZeRO-1 cuts states by rows (`parallel/optimizer/zero1.py`), FSDP as it cuts weights.
            stepped = tensor.kept(degree=of_states, index=at, by_rows=degree == 1) // tensor.count
            states += tensor.count * tensor.state_bytes(optimizer, stepped, types, momentum=momentum)
    return _Share(weights, trained * types.trainable, states, padding)


def _offloaded(held: Holding, execution: Execution, *, types: DtypeBytes, host_apart: bool) -> Holding:
    """What offload moves to the host: parameters, gradients, states; or states, weight copies."""
    if execution.parameters_on_host:
        if not host_apart:
            return held
        locked = _page_locked(held, execution.layout, types=types, padded=True)
        whole = locked + _page_locked(held, execution.layout, types=types, trained=True) + held.optimizer
        return replace(held, weights=0, gradients=0, block_gradients=0, optimizer=0, padding=0, on_host=whole)
    degree, by_rows = execution.layout.shard_degree, execution.layout.weight_shards == 1

    def stepped(unit: Unit) -> int:
        trained = (tensor for tensor in unit.tensors if tensor.trained)
        return sum(tensor.kept(degree=degree, index=held.shards.start, by_rows=by_rows) for tensor in trained)

    copies = round(held.part.inventory.over_all(stepped)) * types.trainable
    if not host_apart:
        return replace(held, optimizer=held.optimizer + copies)
    locked = _page_locked(held, execution.layout, types=types, trained=True)
    # Weights' copies and gradients are page-locked, to be moved while the GPU computes.
    return replace(held, optimizer=0, on_host=held.optimizer + 2 * locked)


def page_locked_bytes(size: float) -> int:
    """What ATen's CachingHostAllocator takes of page-locked memory for a tensor: a power of two."""
    return 1 << (ceil(size) - 1).bit_length()


def _page_locked(
    held: Holding, layout: Layout, *, types: DtypeBytes, trained: bool = False, padded: bool = False
) -> int:
    """Page-locked bytes of a rank's shards, of `trained` tensors, `padded` as the first is."""
    index, by_rows = 0 if padded else held.shards.start, layout.weight_shards == 1

    def size(tensor: Tensor) -> float:
        kept = tensor.kept(degree=layout.shard_degree, index=index, by_rows=by_rows) // tensor.count
        return kept * tensor.element_bytes(types)

    def rounded(unit: Unit) -> int:
        sizes = ((t.count, size(t)) for t in unit.tensors if t.trained or not trained)
        return sum(count * page_locked_bytes(size) for count, size in sizes if size)

    return round(held.part.inventory.over_all(rounded))
