"""What a rank holds between steps: weights, gradients and optimizer states, exactly.

FSDP2 cuts each tensor along its first dim as `torch.chunk` does: every rank but the last ones has ceil(rows / degree)
rows, the last ones fewer or none. So ranks differ, and every distinct one is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from shardwise.plan.inventory import Inventory, Tensor, Unit
from shardwise.plan.types import Types, state_bytes
from shardwise.spec.layout import Execution, Layout, rows_of_shard


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Bytes of ranks that hold alike.

    Attributes:
        shards: indices on the dp_shard axis that this is true for.
        gradients: all gradients, as they are when a step's backward has ended.
        block_gradients: those of the block that has fewest.
        padding: rows of zeros that make all shards of a tensor as long as the first.
    """

    shards: range
    weights: int
    gradients: int
    block_gradients: int
    optimizer: int
    padding: int


def holdings(
    inventory: Inventory, execution: Execution, *, types: Types, momentum: bool = False
) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank along the dp_shard axis."""
    layout = execution.layout
    weights, states = _degrees(layout)
    bounds = _bounds(inventory, layout.dp_shard)

    def holding(shards: range) -> Holding:
        at = shards.start
        trained, tensors = _trained(inventory, degree=states, index=at)
        blocks = [
            (count, _sum(unit, lambda t: t.trained * _kept(t, degree=weights, index=at)))
            for count, unit in inventory.blocks
        ]
        root = _sum(inventory.root, lambda t: t.trained * _kept(t, degree=weights, index=at))
        return Holding(
            shards=shards,
            weights=_weight_bytes(inventory, types, degree=weights, index=at),
            gradients=(sum(count * kept for count, kept in blocks) + root) * types.trainable,
            block_gradients=min(kept for _, kept in blocks) * types.trainable,
            optimizer=state_bytes(
                execution.optimizer, elements=trained, tensors=tensors, types=types, momentum=momentum
            ),
            padding=_padding_bytes(inventory, types, degree=weights, index=at),
        )

    return tuple(holding(range(a, b)) for a, b in itertools.pairwise(bounds))


def _degrees(layout: Layout) -> tuple[int, int]:
    """Over how many ranks weights (with their gradients) and optimizer states are cut.

    ZeRO-2 here is FSDP2 that keeps gathered weights until backward: between steps its weights are sharded too.
    """
    return layout.dp_shard, layout.dp_shard


def _bounds(inventory: Inventory, degree: int) -> list[int]:
    """Where the contents of consecutive ranks change."""
    bounds = {0, degree}
    for tensor in (*inventory.block_tensors(), *inventory.root.tensors):
        whole = tensor.rows // -(-tensor.rows // degree)
        bounds |= {min(whole, degree), min(whole + 1, degree)}
    return sorted(bounds)


def _kept(tensor: Tensor, *, degree: int, index: int) -> int:
    """Elements of all alike tensors on one rank."""
    return tensor.count * tensor.columns * rows_of_shard(tensor.rows, degree=degree, index=index)


def _sum(unit: Unit, elements: Callable[[Tensor], int]) -> int:
    return sum(elements(tensor) for tensor in unit.tensors)


def _trained(inventory: Inventory, *, degree: int, index: int) -> tuple[int, int]:
    """Trained elements of a rank, and parameter tensors they lie in (an empty shard is a tensor too)."""
    elements = tensors = 0
    for count, unit in (*inventory.blocks, (1, inventory.root)):
        for tensor in unit.tensors:
            if tensor.trained:
                elements += count * _kept(tensor, degree=degree, index=index)
                tensors += count * tensor.count
    return elements, tensors


def _weight_bytes(inventory: Inventory, types: Types, *, degree: int, index: int) -> int:
    def of(unit: Unit) -> float:
        return sum(_kept(t, degree=degree, index=index) * t.stored_bytes(types) for t in unit.tensors)

    return round(inventory.over_blocks(of) + of(inventory.root))


def _padding_bytes(inventory: Inventory, types: Types, *, degree: int, index: int) -> int:
    if degree == 1:
        return 0

    def of(unit: Unit) -> float:
        padded = 0.0
        for t in unit.tensors:
            missing = _kept(t, degree=degree, index=0) - _kept(t, degree=degree, index=index)
            padded += missing * t.stored_bytes(types)
        return padded

    return round(inventory.over_blocks(of) + of(inventory.root))
