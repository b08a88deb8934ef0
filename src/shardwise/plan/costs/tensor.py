"""Tensor parallelism: the collectives that a block waits for, on slices of the stream."""

from __future__ import annotations

from shardwise.plan.rates import group_of
from shardwise.plan.work import Work

#: Collectives that tensor parallelism waits for in one pass of a block: before and after attention, and the MLP.
_TENSOR_COLLECTIVES = 4


def slice_seconds(work: Work, tokens: float) -> float:
    """Seconds a pass of a block waits for slices of the stream."""
    stream = tokens * work.model.hidden_size * work.types.compute
    group = group_of(work.cluster, work.execution.layout, "tp")
    return _TENSOR_COLLECTIVES / 2 * (group.gather(stream) + group.scatter(stream))
