"""Which terms of `plan/memory/stack` hold for a published row."""

from __future__ import annotations

from accuracy.rows import Published
from accuracy.stacks import Stack
from shardwise.plan.memory.stack import WHOLE_LOGIT_BYTES, Difference


def difference_of(row: Published, stack: Stack, *, method: str, sharded: bool) -> Difference:
    """The terms that hold for a row."""
    fused_step = "fused" in row.text("optimizer").lower()
    framework, kernels = row.text("framework"), row.text("fused_kernels")
    return Difference(
        optimizer_copies=1 if stack.foreach and stack.steps and not fused_step else 0,
        logit_bytes=8 if kernels.startswith("foak") and "liger" not in kernels else WHOLE_LOGIT_BYTES,
        stream_copies=1 if "baseline-peft-bnb" in framework and not sharded else 0,
        keeps_gradients=stack.fsdp1 and sharded and method != "full",
        widens=(method == "qlora" and stack.widens) or "frozen base weights fp32" in row.text("master_weights"),
        every_second_product=stack.every_second_product
        and row.text("activation_checkpointing").startswith("selective"),
    )
