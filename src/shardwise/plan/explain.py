"""Sentences: why the chosen one, why not each of the others, and what to do where nothing fits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from shardwise.plan.types import TYPES
from shardwise.plan.work import Work
from shardwise.spec.layout import Execution
from shardwise.spec.plan import Candidate, MemoryForecast, Plan
from shardwise.units import GIB, format_bytes

_NAMES = {
    "weights": "weights are",
    "gradients": "gradients are",
    "optimizer": "optimizer states are",
    "activations": "activations are",
    "logits": "logits and their gradients are",
    "communication": "gathered weights and communication buffers are",
    "temporary": "temporaries are",
    "context": "the driver's context and communicators are",
}

#: What a strategy does, for the reasons of a choice.
_VIRTUES = {
    "single": "everything fits on one GPU",
    "ddp": "a whole copy fits on every GPU, so only gradients travel",
    "zero1": "weights and gradients stay whole and only gradients and new weights travel; optimizer states are sharded",
    "zero2": "optimizer states and gradients are sharded; weights are gathered once per step",
    "fsdp": "weights, gradients and optimizer states are sharded, and gathered layer by layer behind the computation",
    "hsdp": "sharded inside each node, where links are fast, and replicated between nodes",
}


def why_not(work: Work, memory: MemoryForecast) -> str:
    """Why an execution does not fit, what takes most of the memory, and what would help."""
    worst = max(memory.ranks, key=lambda rank: rank.peak_bytes)
    part = max(worst.parts, key=lambda name: worst.parts[name])
    return (
        f"needs {_gib(memory.peak_high_bytes)} of {_gib(memory.capacity_bytes)} at {memory.peak_instant}: "
        f"{_NAMES[part]} {_gib(worst.parts[part])} of it; {_remedy(part, work)}"
    )


def _gib(count: int) -> str:
    """GiB throughout a sentence, so that its figures compare; smaller units where they would read 0.0."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else format_bytes(count)


def _remedy(part: str, work: Work) -> str:
    if part in ("weights", "gradients", "optimizer"):
        if not work.sharded:
            return "shard them (fsdp)" if work.cluster.num_gpus > 1 else "shard them over more GPUs (fsdp), or use lora"
        return "use more GPUs" if work.job.method != "full" else "use more GPUs, or method: lora"
    if part == "logits":
        return "train with loss: chunked" if work.execution.loss == "full" else "shorten data.max_length"
    if part == "communication":
        return (
            "free gathered weights after forward (fsdp)"
            if _keeps_gathered(work)
            else "use a smaller model or precision"
        )
    if work.execution.gradient_checkpointing != "full":
        return "recompute activations (gradient_checkpointing: full)"
    if work.execution.micro_batch_size > 1:
        return "lower train.micro_batch_size"
    return "shorten data.max_length"


def _keeps_gathered(work: Work) -> bool:
    return work.sharded and not work.execution.layout.reshard_after_forward


def why(
    work: Work, candidate: Candidate, *, alternatives: Sequence[tuple[Execution, MemoryForecast]]
) -> tuple[str, ...]:
    """Why a candidate is as it is.

    Args:
        work: its job and execution.
        candidate: what is explained.
        alternatives: executions of the same layout with their memory, among them some that do not fit.
    """
    sentences = [
        _fit(candidate),
        f"{candidate.execution.layout.strategy}: {_VIRTUES.get(candidate.execution.layout.strategy, 'as asked')}",
        _batch(work),
        _recompute(work, alternatives),
        _loss(work),
        _precision(work),
        _length(work),
        _rates(work),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def _fit(candidate: Candidate) -> str:
    memory = candidate.memory
    return (
        f"needs {_gib(memory.peak_bytes)}, at most {_gib(memory.peak_high_bytes)}, of {_gib(memory.capacity_bytes)}; "
        f"the peak is at {memory.peak_instant}"
    )


def _precision(work: Work) -> str | None:
    """What a precision that the user may not expect means for the result."""
    if work.execution.precision == "bf16":
        return "precision bf16 keeps no float32 masters: small updates are rounded away, and that cannot be undone"
    if work.execution.precision == "fp32" and work.job.train.precision == "auto":
        return "precision fp32, because CPU processes gain nothing from mixed; on GPUs auto is mixed"
    return None


def _length(work: Work) -> str | None:
    length, most = work.job.data.max_length, work.model.max_position_embeddings
    if length <= most:
        return None
    return f"WARNING: sequences of up to {length} tokens are longer than the {most} positions the model was made for"


def _batch(work: Work) -> str:
    execution, ranks = work.execution, work.execution.layout.data_world_size
    factors = (execution.micro_batch_size, execution.gradient_accumulation_steps, ranks)
    product, asked = prod(factors), work.job.train.global_batch_size
    sentence = (
        f"micro-batch {factors[0]} x {factors[1]} accumulated x {factors[2]} ranks = {product} sequences per step"
    )
    if product == asked:
        return sentence
    return f"{sentence}; global_batch_size is {asked}, so {product - asked} of them are padding of weight zero"


def _recompute(work: Work, alternatives: Sequence[tuple[Execution, MemoryForecast]]) -> str | None:
    execution = work.execution
    if execution.gradient_checkpointing == "none":
        return None
    if work.job.train.gradient_checkpointing != "auto":
        return f"gradient_checkpointing is {execution.gradient_checkpointing} as asked"
    without = [
        memory.peak_high_bytes
        for other, memory in alternatives
        if other.gradient_checkpointing == "none" and other.micro_batch_size == execution.micro_batch_size
    ]
    kept = f"; without it this micro-batch needs {_gib(min(without))}" if without else ""
    return f"gradient_checkpointing is {execution.gradient_checkpointing}, the fastest that fits here{kept}"


def _loss(work: Work) -> str | None:
    if work.execution.loss != "chunked":
        return None
    logits = work.tokens * work.model.vocab_size * TYPES[work.execution.precision].compute
    return f"loss is chunked: whole logits of a micro-batch would take {format_bytes(logits)} in each copy"


def _rates(work: Work) -> str | None:
    gpu, compute = work.cluster.gpu, work.types.compute_name
    if gpu.kind == "cpu":
        return None if gpu.measured else "times of CPU processes are nominal, not measured on this machine"
    if compute not in gpu.dense_flops:
        return f"{gpu.name} has no {compute} units; times are counted at its float32 rate"
    return None


def advice(plan: Plan) -> str:
    """What to say of a plan in which nothing is chosen: each strategy's reason, then what to do."""
    lines = ["no layout fits the hardware" if plan.candidates else "no forecast can be made of any layout"]
    lines += [f"{rejection.strategy}: {rejection.reason}" for rejection in plan.rejected]
    return "\n".join([*lines, *plan.advice])
