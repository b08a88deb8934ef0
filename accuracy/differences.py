"""Which terms of `plan/memory/stack` hold for a published row."""

from __future__ import annotations

from dataclasses import dataclass

from accuracy.rows import Published
from accuracy.stacks import Stack, under_deepspeed
from shardwise.plan.memory.stack import (
    SLICED_LOGIT_BYTES,
    WHOLE_LOGIT_BYTES,
    WITHOUT_BLOCKS,
    Difference,
    Zero,
    add,
)
from shardwise.plan.work import FLOAT32_BYTES, Alive, DtypeBytes, Holding, Work

#: Elements of a bucket of Qwen's ds_config_zero2.json; in zero3.json `auto`, Trainer's square of the width. Two are
#: in turn where `overlap_comm` is.
_BUCKET, _BUCKETS = 200_000_000, 2

#: Of what FSDP1 holds to the end of backward, the first block's gradient is counted as ours.
_BLOCKS_WITHOUT_KEPT_GRADIENT = 1


@dataclass(frozen=True, kw_only=True)
class DifferenceOfRow(Difference):
    """What stacks of published rows do beside those that plans are made for.

    Attributes:
        stream_copies: copies more of every block's input, in the compute type. PEFT's preparation for 4-bit training
            turns norms into float32, and with them the residual stream, which is one.
        keeps_gradients: FSDP1 waits for the gradients of a frozen block's inputs by a hook on all of them, which keeps
            inputs and gradients to the end of backward. Found as the slope over tokens of fms-acceleration's LoRA rows.
        widens: what is not quantised is frozen in float32, as PEFT's preparation for 4-bit training leaves it, and
            trainers that load all weights in float32.
    """

    stream_copies: int = 0
    keeps_gradients: bool = False
    widens: bool = False

    def changed(self, name: str, alive: Alive, work: Work, holding: Holding) -> Alive:
        """What is alive at an instant, with all differences."""
        changed = super().changed(name, alive, work, holding)
        if self.widens:
            add(changed, "weights", _bytes_of_widening(holding, work.types))
            if name == "end of forward" and work.setting.casts:
                # The head is cast as it is used.
                add(changed, "temporary", holding.part.head_elements * work.types.compute)
        if name in WITHOUT_BLOCKS:
            return changed
        stream = work.tokens * work.model.hidden_size * work.types.compute
        add(changed, "activations", self.stream_copies * stream * len(holding.part.span))
        if self.keeps_gradients and name.startswith("backward of layer"):
            add(changed, "activations", max(0, len(holding.part.span) - _BLOCKS_WITHOUT_KEPT_GRADIENT) * stream)
        return changed


def _bytes_of_widening(holding: Holding, types: DtypeBytes) -> int:
    """What float32 takes more of the weights of a rank that are frozen and not quantised."""
    units = holding.part.inventory.units
    frozen = [(count, t) for count, unit in units for t in unit.tensors if not (t.trained or t.quantised)]
    kept = sum(count * tensor.kept(degree=len(holding.shards), index=0) for count, tensor in frozen)
    return kept * (FLOAT32_BYTES - types.frozen)


def difference_of(row: Published, stack: Stack, *, method: str, sharded: bool, width: int) -> DifferenceOfRow:
    """The terms that hold for a row."""
    framework = row.text("framework")
    # DeepSpeed's `AdamW` is its own FusedAdam.
    fused_step = "fused" in row.text("optimizer").lower() or under_deepspeed(row)
    return DifferenceOfRow(
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
