"""What the trainer accepts: one table, read by the planner (which plans nothing else) and by the trainer (which refuses
the rest before it loads any weight)."""

from __future__ import annotations

from shardwise.spec.job import Job
from shardwise.spec.layout import Execution, Layout
from shardwise.spec.model import ModelShape

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
    if layout.ep > 1:
        return "expert parallel (ep) is not trained by this version; write ep: 1"
    if strategy not in TRAINABLE:
        nearest = "ddp" if layout.world_size > 1 else "single"
        if layout.dp_shard > 1 or layout.tp > 1 or layout.pp > 1:
            nearest = "fsdp"
        return f"{strategy} is not trained by this version; the nearest layout that is: {nearest}"
    if method not in TRAINABLE[strategy]:
        return f"method {method} is not trained by this version under {strategy}; the nearest that is: lora"
    return None


def execution_refusals(job: Job, execution: Execution, *, model: ModelShape | None = None) -> list[str]:
    """Every reason why an execution of a job cannot be trained; empty where it can.

    Args:
        model: the job's model, where it has been read already.
    """
    reasons = [refusal(method=job.method, layout=execution.layout)]
    if model is not None:
        reasons += _model_refusals(model, execution)
    if job.data.packing and execution.attn_implementation.startswith("flash") and execution.micro_batch_size > 1:
        # transformers tells packed documents apart by their positions for one sequence at a time only.
        reasons.append(f"packing with {execution.attn_implementation} needs train.micro_batch_size: 1, or use sdpa")
    if execution.precision not in PRECISIONS:
        reasons.append(f"precision {execution.precision} is not trained by this version; use mixed or bf16")
    if execution.optimizer not in OPTIMIZERS:
        reasons.append(f"optimizer {execution.optimizer} is not trained by this version; use adamw or sgd")
    if execution.offload not in OFFLOADS:
        reasons.append(f"offload {execution.offload} is not trained by this version; use none")
    return [reason for reason in reasons if reason]


def _model_refusals(model: ModelShape, execution: Execution) -> list[str]:
    reasons: list[str] = []
    if model.has_experts:
        reasons.append(f"{model.family} is a mixture of experts, which is planned but not trained by this version")
    if execution.loss == "chunked" and not model.plain_head:
        reasons.append(f"{model.family} caps or scales its logits, which loss: chunked does not do; use loss: full")
    return reasons
