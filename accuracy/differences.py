"""Which terms of `plan/memory/stack` hold for a published row."""

from __future__ import annotations

from accuracy.rows import Published
from accuracy.stacks import Stack
from shardwise.plan.memory.stack import SLICED_LOGIT_BYTES, WHOLE_LOGIT_BYTES, Difference


def difference_of(row: Published, stack: Stack, *, method: str, sharded: bool) -> Difference:
    """The terms that hold for a row."""
    fused_step = "fused" in row.text("optimizer").lower()
    framework = row.text("framework")
    return Difference(
        optimizer_copies=1 if stack.foreach and stack.steps and not fused_step else 0,
        # Of AdamW's states 12 bytes, where those of 16-bit weights are 4: `master_bytes` is of states of 8 bytes.
        master_bytes=16 if stack.masters and method == "full" else 0,
        logit_bytes=_logit_bytes(row, stack),
        stream_copies=1 if "baseline-peft-bnb" in framework and not sharded else 0,
        keeps_gradients=stack.fsdp1 and sharded and method != "full",
        widens=(method == "qlora" and stack.widens)
        or (method == "lora" and stack.loads_float32)
        or "frozen base weights fp32" in row.text("master_weights"),
        tile=stack.tile,
        every_second_product=stack.every_second_product
        and row.text("activation_checkpointing").startswith("selective"),
    )


def _logit_bytes(row: Published, stack: Stack) -> int:
    if stack.own_loss and "DeepSpeed" in row.text("framework"):
        return 8  # logits, their log-probabilities and the gradients of both, in 16 bits
    kernels = row.text("fused_kernels")
    if kernels.startswith("foak") and "liger" not in kernels:
        return 8
    if (row.whole("tp", default=1) or 1) > 1 and stack.slices_loss:
        return SLICED_LOGIT_BYTES
    return WHOLE_LOGIT_BYTES
