"""What QLoRA leaves as it is of a mixture of experts, and what that comes to."""

from __future__ import annotations

from shardwise.plan.memory.types import FLOAT32_BYTES
from shardwise.spec.job import Job
from shardwise.spec.model import ModelShape
from shardwise.units import format_gib


def left_wide(job: Job, model: ModelShape) -> str | None:
    """A sentence on stacked experts under QLoRA, which bitsandbytes leaves alone and PEFT's
    `prepare_model_for_kbit_training` widens to float32; None elsewhere."""
    if job.method != "qlora":
        return None
    elements = sum(
        kind.num_layers * m.count * m.rows * m.columns for kind in model.kinds for m in kind.matrices if m.stacked
    )
    if not elements:
        return None
    return (
        f"qlora does not quantise experts that a block keeps in one tensor, and widens them to float32: "
        f"{format_gib(FLOAT32_BYTES * elements)} of all weights; method: lora leaves them in the type that they come in"
    )
