"""Which terms of `plan/memory/stack` hold for a published row."""

from __future__ import annotations

from accuracy.rows import Published
from accuracy.stacks import Stack, under_deepspeed
from shardwise.plan.memory.stack import SLICED_LOGIT_BYTES, WHOLE_LOGIT_BYTES, Difference, Zero

#: Elements of a bucket of Qwen's ds_config_zero2.json; in zero3.json `auto`, Trainer's square of the width. Two are
#: in turn where `overlap_comm` is.
_BUCKET, _BUCKETS = 200_000_000, 2


def difference_of(row: Published, stack: Stack, *, method: str, sharded: bool, width: int) -> Difference:
    """The terms that hold for a row."""
    framework = row.text("framework")
    # DeepSpeed's `AdamW` is its own FusedAdam.
    fused_step = "fused" in row.text("optimizer").lower() or under_deepspeed(row)
    return Difference(
        optimizer_copies=stack.copies if stack.steps and not fused_step else 0,
        # Of AdamW's states 12 bytes, where those of 16-bit weights are 4: `master_bytes` is of states of 8 bytes.
        master_bytes=16 if (stack.masters and method == "full") or under_deepspeed(row) else 0,
        logit_bytes=_logit_bytes(row, stack),
        stream_copies=1 if "baseline-peft-bnb" in framework and not sharded else 0,
        keeps_gradients=stack.fsdp1 and sharded and method != "full",
        widens=(method == "lora" and stack.loads_float32) or "frozen base weights fp32" in row.text("master_weights"),
        tile=stack.tile,
        every_second_product=stack.every_second_product
        and row.text("activation_checkpointing").startswith("selective"),
        zero=_zero(row, width=width) if under_deepspeed(row) else None,
    )


def _zero(row: Published, *, width: int) -> Zero:
    third = "ZeRO-3" in row.text("framework")
    return Zero(
        stage=3 if third else 2,
        ranks=row.whole("n_gpus", default=1) or 1,
        bucket_bytes=_BUCKETS * 2 * (width * width if third else _BUCKET),
        accumulates=(row.whole("grad_accum") or 1) > 1,
        kept_bytes=2,
    )


def _logit_bytes(row: Published, stack: Stack) -> int:
    if under_deepspeed(row):
        return 8  # logits, their log-probabilities and the gradients of both, in 16 bits
    kernels = row.text("fused_kernels")
    if kernels.startswith("foak") and "liger" not in kernels:
        return 8
    if (row.whole("tp", default=1) or 1) > 1 and stack.slices_loss:
        return SLICED_LOGIT_BYTES
    return WHOLE_LOGIT_BYTES
