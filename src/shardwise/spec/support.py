"""What the trainer accepts: one table, read by the planner (which plans nothing else) and by the trainer (which refuses
the rest before it loads any weight)."""

from __future__ import annotations

from shardwise.spec.job import Job
from shardwise.spec.layout import Execution, Layout

#: strategy -> methods that train under it, with the same result as on one process.
TRAINABLE: dict[str, tuple[str, ...]] = {
    "single": ("full", "lora"),
    "ddp": ("full", "lora"),
    "zero2": ("full", "lora"),
    "fsdp": ("full", "lora"),
    "hsdp": ("full", "lora"),
}

PRECISIONS = ("mixed", "bf16", "fp32")
OPTIMIZERS = ("adamw", "sgd")
OFFLOADS = ("none",)


def refusal(*, method: str, layout: Layout) -> str | None:
    """Why a layout cannot be trained with a method, and the nearest one that can; None where it can."""
    strategy = layout.strategy
    if strategy not in TRAINABLE:
        nearest = "ddp" if layout.world_size > 1 else "single"
        if layout.dp_shard > 1 or layout.tp > 1 or layout.pp > 1:
            nearest = "fsdp"
        return f"{strategy} is not trained by this version; the nearest layout that is: {nearest}"
    if method not in TRAINABLE[strategy]:
        return f"method {method} is not trained by this version under {strategy}; the nearest that is: lora"
    return None


def execution_refusals(job: Job, execution: Execution) -> list[str]:
    """Every reason why an execution of a job cannot be trained; empty where it can."""
    reasons = [refusal(method=job.method, layout=execution.layout)]
    if execution.precision not in PRECISIONS:
        reasons.append(f"precision {execution.precision} is not trained by this version; use mixed or bf16")
    if execution.optimizer not in OPTIMIZERS:
        reasons.append(f"optimizer {execution.optimizer} is not trained by this version; use adamw or sgd")
    if execution.offload not in OFFLOADS:
        reasons.append(f"offload {execution.offload} is not trained by this version; use none")
    return [reason for reason in reasons if reason]
