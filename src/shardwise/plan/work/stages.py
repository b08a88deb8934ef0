"""What each stage of a pipeline holds: its blocks, all like the mean one, and what lies outside the blocks."""

from collections.abc import Callable
from functools import lru_cache

from shardwise.plan.work.inventory import Inventory, Unit
from shardwise.plan.work.work import Work
from shardwise.spec.layout.axes import Layout
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.model.stages import stage_sizes


def mean(work: Work, of: Callable[[Unit], float]) -> float:
    """A number of the mean block: times are affine in bytes, so that all blocks together come out right."""
    return work.inventory.over_blocks(of) / work.model.num_layers


def blocks_of_stages(model: ModelShape, layout: Layout) -> tuple[int, ...]:
    """How many blocks each stage has; one stage has all where there is no pipeline."""
    if layout.num_stages == 1:
        return (model.num_layers,)
    return stage_sizes(model, num_stages=layout.num_stages)


def outer_of_stage(work: Work, stage: int) -> Unit:
    """What a stage holds beside its blocks: the embedding in the first, norm and head in the last."""
    return _outer(work.inventory, stage == 0, stage == work.execution.layout.num_stages - 1)


@lru_cache(maxsize=256)
def _outer(inventory: Inventory, is_first: bool, is_last: bool) -> Unit:
    if is_first and is_last:
        return inventory.root
    first = tuple(tensor for tensor in inventory.root.tensors if is_first and tensor.place == "front")
    if not is_last:
        return Unit(tensors=first)
    # A tied head is a copy of the embedding there.
    tied = (tensor for tensor in inventory.root.tensors if inventory.tied and tensor.name == "embedding")
    return Unit(tensors=(*(tensor for tensor in inventory.root.tensors if tensor.place == "back"), *tied))


@lru_cache(maxsize=256)
def ends_of(inventory: Inventory, outer: Unit) -> tuple[Unit, Unit, Unit]:
    """Of what a stage holds beside its blocks: the embedding, the final norm with the head, and all but these last."""
    embedding, head = ([t for t in outer.tensors if t in end.tensors] for end in inventory.ends)
    rest = [tensor for tensor in outer.tensors if tensor not in head]
    return Unit(tensors=tuple(embedding)), Unit(tensors=tuple(head)), Unit(tensors=tuple(rest))
