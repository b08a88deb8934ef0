"""A model's part on one pipeline and tensor-parallel rank, before data parallelism."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.plan.work.inventory import Inventory, Unit
from shardwise.spec.layout.axes import Layout
from shardwise.spec.model.shape import Cut, Matrix, ModelShape, OtherBlocks
from shardwise.spec.model.stages import stage_blocks
from shardwise.spec.support.splits import heads


@dataclass(frozen=True)
class RankPart:
    """What some ranks hold before sharding; `span`: the blocks that one forward goes through."""

    pp: int
    tp: range
    inventory: Inventory
    span: range
    is_first: bool
    is_last: bool

    @cached_property
    def cast_matrices(self) -> tuple[float, float]:
        """Elements of trained matrices that autocast casts, in the largest and the mean block."""
        held = self.inventory

        def of(unit: Unit) -> int:
            trained = sum(t.elements for t in unit.tensors if t.trained and t.columns > 1)
            return trained - sum(unit.joined_elements(held.joined))

        return of(held.block), held.of_mean_block(of)

    @cached_property
    def cast_experts(self) -> tuple[float, float]:
        """Of these, those of stacked experts."""

        def of(unit: Unit) -> int:
            return sum(tensor.elements for tensor in unit.tensors if tensor.trained and tensor.last)

        return of(self.inventory.block), self.inventory.of_mean_block(of)

    @cached_property
    def joined_adapters(self) -> tuple[float, float]:
        """Elements of the A's and of the B's whose products are joined, in the mean block."""
        held = self.inventory
        a, b = (held.of_mean_block(lambda unit, i=i: unit.joined_elements(held.joined)[i]) for i in (0, 1))
        return a, b

    @cached_property
    def largest_trained(self) -> int:
        """Elements of the largest tensor with a gradient."""
        return max(self.inventory.block.largest_trained, self.inventory.root.largest_trained)

    @cached_property
    def head_elements(self) -> int:
        """Elements of the weight that the head reads; 0 where it lies elsewhere."""
        return _elements(self.inventory, self.inventory.head_name) if self.is_last else 0

    @cached_property
    def trained_head(self) -> int:
        """Elements of the head's weight, where it is here and trained."""
        return self.head_elements if self.inventory.trained(self.inventory.head_name) else 0

    @cached_property
    def trained_embedding(self) -> int:
        """Elements of the embedding, where tokens are looked up here and it is trained."""
        name = self.inventory.embedding_name
        return _elements(self.inventory, name) if self.is_first and self.inventory.trained(name) else 0


def parts(model: ModelShape, inventory: Inventory, layout: Layout, *, distinct: bool = False) -> tuple[RankPart, ...]:
    """The parts of a layout, by pipeline rank, then by tensor-parallel rank. `distinct` leaves out
    pipeline ranks that hold the same as an earlier one, which has as many micro-batches in flight.
    Raises ValueError: there are more stages than blocks."""
    stages = stage_blocks(model, num_stages=layout.num_stages)
    inventory = inventory.dealt(layout.ep)
    starts = bounds((getattr(t, t.cut) for t in inventory.tensors if t.cut), layout.tp)
    slices = [
        (range(begin, end), inventory.sliced(degree=layout.tp, index=begin))
        for begin, end in itertools.pairwise(starts)
    ]
    kinds = [count for count, _ in inventory.blocks]
    staged: dict[object, list[RankPart]] = {}
    found: list[RankPart] = []
    for pp in range(layout.pp):
        here = layout.stages_of(pp)
        spans = [stages[stage] for stage in here]
        counts, span = _counts(model, kinds, spans), max(spans, key=len)
        ends = 0 in here, layout.num_stages - 1 in here
        # Ranks that hold the same have one inventory.
        key = (counts, len(span), ends)
        if key not in staged:
            both = [(tp, whole.staged(counts, is_first=ends[0], is_last=ends[1])) for tp, whole in slices]
            staged[key] = [RankPart(pp, tp, held, span, *ends) for tp, held in both]
        elif distinct:
            continue
        found += (replace(part, pp=pp, span=span) for part in staged[key])
    return tuple(found)


def _counts(model: ModelShape, kinds: list[int], spans: list[range]) -> tuple[int, ...]:
    """Blocks of each kind in some stages; where it is not known which block is of which kind, they
    are taken as spread evenly over the depth."""
    total = sum(kinds)
    if at := model.kind_of_block:
        return tuple(sum(at[index] == kind for span in spans for index in span) for kind in range(len(kinds)))
    counts = [sum(kind * span.stop // total - kind * span.start // total for span in spans) for kind in kinds[1:]]
    # The first kind takes what rounding leaves, so that stages hold all blocks.
    return sum(len(span) for span in spans) - sum(counts), *counts


def bounds(sizes: Iterable[int], degree: int) -> list[int]:
    """Where consecutive ranks begin to differ, if dims of these sizes are cut by `torch.chunk`."""
    found = {0, degree}
    for size in set(sizes):
        # Full chunks come first and are alike; then a shorter one, then empty ones.
        whole = size // -(-size // degree) if size else 0
        found |= {min(whole, degree), min(whole + 1, degree)}
    return sorted(found)


def sliced_shape(model: ModelShape, *, degree: int) -> ModelShape:
    """The shape whose blocks do one tensor-parallel rank's work: fewer heads, narrower matrices."""
    if degree == 1:
        return model
    others = tuple(
        OtherBlocks(count=other.count, matrices=_sliced(other.matrices, degree), norms=other.norms)
        for other in model.other_blocks
    )
    # Families whose attention is not sliced have all heads on every rank.
    of_heads = degree if "attention heads" in heads(model) else 1
    return replace(
        model,
        num_attention_heads=-(-model.num_attention_heads // of_heads),
        num_key_value_heads=-(-model.num_key_value_heads // of_heads),
        intermediate_size=-(-model.intermediate_size // degree),
        matrices=_sliced(model.matrices, degree),
        other_blocks=others,
    )


def _sliced(matrices: Iterable[Matrix], degree: int) -> tuple[Matrix, ...]:
    return tuple(_slice(m, m.sliced_by, degree) if m.sliced_by else m for m in matrices)


def _slice(m: Matrix, cut: Cut, degree: int) -> Matrix:
    """Of experts that are dealt, a token finds its share of those it is routed to."""
    active = None if m.active is None or cut != "count" else -(-m.active // degree)
    return replace(m, **{cut: -(-getattr(m, cut) // degree), "active": m.active if active is None else active})


def _elements(inventory: Inventory, name: str) -> int:
    return sum(tensor.elements for tensor in inventory.root.tensors if tensor.name == name)
