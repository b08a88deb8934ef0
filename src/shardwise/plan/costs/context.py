"""Context parallelism: keys and values of a whole sequence, gathered by ranks with parts of it."""

from shardwise.plan.rates import group_of
from shardwise.plan.work import Scene, Work
from shardwise.spec.layout.execution import heads_at_once

#: Operators that gather keys and values of parts, order them, and compute two parts for one.
OPERATORS_PER_GATHER = 16


def all_gathered_keys(scene: Scene) -> float:
    """In attention's backward, with a sequence over several ranks: keys and values of all of it, of
    as many heads as are gathered at once, the sums of their gradients, and those that a kernel
    makes, for each head of queries where these are more."""
    work, block = scene.work, scene.work.block
    if work.execution.layout.cp == 1:
        return 0
    of_one = _bytes_of_head(work)
    heads, copies = block.num_key_value_heads, block.num_attention_heads // block.num_key_value_heads
    at_once = heads_at_once(heads, bytes_of_one=of_one)
    of_groups = 3 * copies if work.setting.masked else 2 if at_once == 1 else copies + 1
    return at_once * of_one * (2 + (1 if copies == 1 else of_groups))


def gathered_bytes(work: Work) -> float:
    """Keys and values of all heads, of whole rows."""
    return work.block.num_key_value_heads * _bytes_of_head(work)


def _bytes_of_head(work: Work) -> float:
    widths = work.block.head_dim + (work.block.value_head_dim or work.block.head_dim)
    return work.execution.layout.cp * work.tokens * widths * work.types.compute


def key_seconds(work: Work, tokens: float) -> float:
    """Seconds a forward waits for keys and values; a backward, for them again and their sums."""
    layout, model = work.execution.layout, work.model
    widths = model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim)) / layout.tp
    return group_of(work.cluster, layout, "cp").gather(tokens * layout.cp * widths * work.types.compute)
