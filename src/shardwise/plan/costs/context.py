"""Context parallelism: keys and values of a whole sequence, gathered by ranks with parts of it."""

from shardwise.plan.rates import group_of
from shardwise.plan.work import Scene, Work
from shardwise.spec.layout.execution import heads_at_once

#: Operators that gather keys and values of parts, order them, and compute two parts for one.
_OPERATORS_PER_GATHER = 16


def operators_of_gather(work: Work) -> int:
    """Operators that a block's forward has more, on a rank with parts of rows."""
    return _OPERATORS_PER_GATHER if work.execution.layout.splits_rows else 0


def compared(work: Work) -> float:
    """Of all scores of a row, those that attention with a mask makes: a part of a row is compared
    with what lies before its end, the whole row with itself."""
    cp = work.execution.layout.cp
    return 1.0 if cp == 1 else (2 * cp + 1) / (4 * cp)


def all_gathered_keys(scene: Scene) -> float:
    """In attention's backward, with a sequence over several ranks: keys and values of all of it, of
    as many heads as are gathered at once, the sums of their gradients, and those that a kernel
    makes, for each head of queries where these are more."""
    work, cp = scene.work, scene.work.execution.layout.cp
    if cp == 1:
        return 0
    block, setting = work.block, work.setting
    of_one = _bytes_of_head(work)
    heads, copies = block.num_key_value_heads, block.num_attention_heads // block.num_key_value_heads
    at_once = heads_at_once(heads, bytes_of_one=of_one)
    beside = 0.0
    if setting.cuda:
        of_groups = 3 * copies if setting.masked else 2 if at_once == 1 else copies + 1
        several = 1 if copies == 1 else of_groups
    else:
        # Without a mask a rank's last part is compared with what lies before it, then with itself.
        longest = 1 if setting.masked else 1 - 1 / (2 * cp)
        several = longest if copies == 1 else copies + (copies + 1) * longest
        # Two gradients of a part's queries.
        beside = work.tokens * at_once * copies * block.head_dim * work.types.compute
    if setting.masked:  # in numbers, for one of the two parts
        beside += work.tokens / 2 * work.job.data.max_length * work.types.compute
    return at_once * of_one * (2 + several) + beside


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
