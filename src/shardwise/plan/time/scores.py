"""Scores of attention: how many a kernel computes, and how many of them count."""

from __future__ import annotations

from shardwise.plan.memory.types import FLOAT32_BYTES
from shardwise.plan.memory.work import Work
from shardwise.spec.attention import MASKED


def multiplications(work: Work) -> tuple[float, float]:
    """Multiplications of the mean block's attention in the forward of one sequence, on all ranks that share it.

    Causal attention counts half the scores, a window as many as it is long. `sdpa` with a mask (windows, packed
    documents) and eager attention compute all of them.

    Returns:
        Those without a mask, and those with one.
    """
    model, length, kind = work.model, work.job.data.max_length, work.execution.attn_implementation
    seen = min(length, model.sliding_window or length)
    windowed = 0 if seen == length else model.num_layers if model.windowed_layers is None else model.windowed_layers
    share = windowed / model.num_layers
    widths = length * model.num_attention_heads * (model.head_dim + (model.value_head_dim or model.head_dim))
    whole, causal, behind = widths * length, widths * _mean_of(length, length), widths * _mean_of(seen, length)
    if kind == "eager":
        return whole, 0.0
    if kind not in MASKED:
        return causal + (behind - causal) * share, 0.0
    masked = 1.0 if work.job.data.packing else share
    return causal * (1 - masked), whole * masked


def score_bytes(work: Work, size: int) -> float:
    """Of the scores of one block and so many sequences, in float32."""
    tokens = size * work.job.data.max_length
    return tokens * work.job.data.max_length * work.model.num_attention_heads * FLOAT32_BYTES


def _mean_of(seen: int, length: int) -> float:
    """Keys that the mean token of a causal sequence sees, of the last so many."""
    return seen - seen * (seen - 1) / (2 * length)
