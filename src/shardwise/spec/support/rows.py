"""Jobs whose result would depend on how rows are batched or laid out: they are not trained."""

from __future__ import annotations

from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.model.shape import ModelShape

#: Families whose code in transformers makes its attention mask without positions, which are what tells packed documents
#: apart.
MASKED_WITHOUT_POSITIONS = ("bloom", "falcon", "mpt", "opt")


def follows_the_batch(job: Job, model: ModelShape) -> list[str]:
    """Why a row's result would depend on the rows beside it; empty where it does not."""
    reasons: list[str] = []
    if job.data.packing and model.family in MASKED_WITHOUT_POSITIONS:
        reasons.append(
            f"packing is not trained for {model.family}, whose code in transformers lets packed documents see each "
            "other; use packing: false"
        )
    steady = model.steady_positions
    if steady is not None and job.data.max_length > steady:
        reasons.append(
            f"max_length {job.data.max_length} is not trained: beyond {steady} tokens this model's rotary positions "
            "follow the longest sequence of a micro-batch, so that the result would depend on how the work is spread; "
            f"use max_length: {steady} or less"
        )
    return reasons


def follows_the_layout(job: Job, model: ModelShape, layout: Layout) -> list[str]:
    """Why padding for a layout would move rotary positions beyond the steady ones; empty where it does not."""
    steady, multiple, length = model.steady_positions, layout.sequence_multiple, job.data.max_length
    rounded = -(-length // multiple) * multiple
    if steady is None or length > steady or rounded <= steady:
        return []
    longest = steady // multiple * multiple
    mended = f"use max_length: {longest} or less, or " if longest else "use "
    return [
        f"{layout.strategy} rounds rows up to a multiple of {multiple}, those of max_length {length} to {rounded}, and "
        f"beyond {steady} tokens this model's rotary positions follow the longest sequence of a micro-batch; {mended}"
        "another layout"
    ]
