"""What lies in each stage of a pipeline: so many blocks, and at its ends the embedding and the head"""

from __future__ import annotations

from shardwise.plan.memory.inventory import Unit
from shardwise.plan.memory.work import Work
from shardwise.spec.stages import stage_blocks

_NOTHING = Unit(tensors=())


def blocks_of_stages(work: Work) -> tuple[int, ...]:
    """How many blocks each stage has; one stage has all where there is no pipeline."""
    num_stages = work.execution.layout.num_stages
    if num_stages == 1:
        return (work.model.num_layers,)
    return tuple(len(span) for span in stage_blocks(work.model, num_stages=num_stages))


def outer_of_stage(work: Work, stage: int) -> Unit:
    """What a stage holds beside its blocks: the embedding in the first, norm and head in the last."""
    root, last = work.inventory.root, work.execution.layout.num_stages - 1
    if last == 0:
        return root
    if 0 < stage < last:
        return _NOTHING
    first = tuple(tensor for tensor in root.tensors if tensor.place == "front")
    if stage == 0:
        return Unit(tensors=first)
    # A tied head is a copy of the embedding there.
    tied = (tensor for tensor in first if work.model.tied and tensor.name == "embedding")
    return Unit(tensors=(*(tensor for tensor in root.tensors if tensor.place == "back"), *tied))
