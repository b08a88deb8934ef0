"""What sharing rows among ranks costs: keys and values, and from which length that is little."""

from math import ceil

from shardwise.plan.costs.attention import attention_seconds
from shardwise.plan.costs.context import gathered_bytes, key_seconds
from shardwise.plan.costs.piece import device_of
from shardwise.plan.work import Work
from shardwise.units import format_gib, format_seconds

#: Of attention's seconds, what is little beside them.
_LITTLE = 0.05


def keys_and_values(work: Work) -> str | None:
    """Attention grows with the square of a row's length, and what is gathered with the length."""
    if work.execution.layout.cp == 1 or work.profile is not None:
        return None
    gathered = key_seconds(work, work.tokens)
    attention = attention_seconds(work, device_of(work))[0]
    length, share = work.job.data.max_length, gathered / attention
    least = ceil(length * share / _LITTLE)
    little = f"from rows of {least:,} tokens on that is less than {_LITTLE:.0%} of attention's own time"
    return (
        f"cp: a forward of a block gathers {format_gib(round(gathered_bytes(work)))} of keys and values of whole rows, "
        f"some heads at a time, and waits {format_seconds(gathered)} for them beside {format_seconds(attention)} of "
        f"attention; {little}"
    )
