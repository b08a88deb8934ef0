"""Context parallelism: keys and values of a whole sequence, gathered by ranks that hold parts of it."""

from __future__ import annotations

from shardwise.plan.rates import group_of
from shardwise.plan.work import Scene, Work

#: Operators that gather keys and values of a sequence in parts, put them in order, and compute two
#: parts for one.
OPERATORS_PER_GATHER = 16


def all_gathered_keys(scene: Scene) -> float:
    """In attention, with a sequence over several ranks: keys and values of all of it, as they come and in order, beside
    one's own that go out; their gradients likewise."""
    work, cp = scene.work, scene.work.execution.layout.cp
    if cp == 1:
        return 0
    values = work.block.value_head_dim or work.block.head_dim
    widths = work.block.num_key_value_heads * (work.block.head_dim + values)
    return 2 * (1 + cp) * work.tokens * widths * work.types.compute


def key_seconds(work: Work, tokens: float) -> float:
    """Seconds a pass of a block waits for keys and values in forward, and for the sum of their
    gradients in backward."""
    layout, model = work.execution.layout, work.model
    widths = model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim)) / layout.tp
    return group_of(work.cluster, layout, "cp").gather(tokens * layout.cp * widths * work.types.compute)
