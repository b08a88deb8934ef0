"""What another trainer needs for the execution that a plan chose."""

from dataclasses import replace

from shardwise.catalog.calibration import Stack
from shardwise.plan.memory import (
    SLICED_LOGIT_BYTES,
    WHOLE_LOGIT_BYTES,
    Difference,
    Zero,
    forecast_memory,
    peak_of_stack,
)
from shardwise.plan.work import work_of, work_of_plan
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.beside import OnStack
from shardwise.spec.plan.forecast import Plan

#: Fields of a difference -> what they are called in a sentence.
_NAMES = {
    "logit_bytes": "logits made all at once",
    "optimizer_copies": "AdamW's copy of the second moments",
    "master_bytes": "float32 copies of the weights",
    "zero": "buffers of gradients",
    "tile": "float32 gradients of the head",
    "every_second_product": "every second product that recompute keeps",
}


def on_stack(plan: Plan, stack: Stack) -> OnStack | None:
    """None where the plan chose nothing. Raises as `work_of_plan` does."""
    if plan.best is None:
        return None
    execution = plan.best.execution
    ours = work_of_plan(plan, execution)
    # What the job states of the loss, holds there too.
    stated = ours.job.train.loss
    whole = bool(stack.logit_bytes) if stated == "auto" else stated == "full"
    held = "bf16" if stack.half_engine and _zero(stack, execution) else execution.precision
    theirs = replace(execution, loss="full" if whole else "chunked", precision=held)
    if stack.bucket and execution.layout.dp_shard > 1 and not execution.parameters_on_host:
        theirs = replace(theirs, layout=replace(theirs.layout, zero_stage=1, reshard_after_forward=False))
    # No other stack joins the products of adapters.
    inventory = replace(ours.inventory, joined=frozenset())
    work = work_of(ours.job, model=ours.model, cluster=ours.cluster, execution=theirs, inventory=inventory)
    memory = forecast_memory(work)
    context = max(memory.ranks, key=lambda rank: rank.peak_bytes).parts["context"]
    full = _difference(stack, replace(theirs, layout=execution.layout))
    instant, allocated = peak_of_stack(work, full)
    # Of an engine in 16 bits they are instead of what this trainer has.
    none = Difference(logit_bytes=0, master_bytes=full.master_bytes * stack.half_engine)
    terms = {
        name: round(allocated - peak_of_stack(work, replace(full, **{field: getattr(none, field)}))[1])
        for field, name in _NAMES.items()
        if getattr(full, field) != getattr(none, field)
    }
    beyond = allocated + context - memory.peak_bytes
    return OnStack(
        target=stack.name,
        version=stack.version,
        peak_bytes=round(allocated + context),
        peak_high_bytes=round(memory.peak_high_bytes + beyond),
        capacity_bytes=memory.capacity_bytes,
        peak_instant=instant,
        terms={name: count for name, count in terms.items() if count > 0},
        setting=stack.setting,
        checked=stack.checked,
        source=stack.source,
    )


def _difference(stack: Stack, execution: Execution) -> Difference:
    whole = execution.loss == "full"
    sliced = stack.slices_loss and execution.layout.tp > 1
    zero = _zero(stack, execution)
    return Difference(
        optimizer_copies=stack.optimizer_copies,
        logit_bytes=(SLICED_LOGIT_BYTES if sliced else stack.logit_bytes or WHOLE_LOGIT_BYTES) if whole else 0,
        # Of moments in 16 bits, of 4 bytes, the engine's 12 are written as 16 beside 8.
        master_bytes=16 * (zero is not None)
        if stack.half_engine
        else stack.master_bytes * (not zero or zero.stage > 0),
        zero=zero,
        every_second_product=stack.every_second_product and execution.gradient_checkpointing == "selective",
        tile=(0, 0) if whole else stack.tile,
    )


def _zero(stack: Stack, execution: Execution) -> Zero | None:
    """DeepSpeed's stage as exported, with a bucket for each type that gradients are reduced in: two
    under autocast, float32 in stages 1 and 2. An engine in 16 bits needs a stage."""
    layout = execution.layout
    stage = layout.zero_stage if layout.dp_shard > 1 else int(execution.optimizer_on_host)
    stage = 3 if execution.parameters_on_host else stage
    if not stack.bucket or (stack.half_engine and not stage):
        return None
    types = (4,) if execution.precision == "fp32" else (2, 4) if stage == 3 else (4, 4)
    kept = 2 if stack.half_engine else 4
    return Zero(
        ranks=1 if execution.parameters_on_host else layout.dp_shard,
        stage=stage,
        bucket_bytes=stack.bucket * (kept if stack.half_engine else sum(types)),
        accumulates=execution.gradient_accumulation_steps > 1,
        kept_bytes=kept,
    )
