"""Why an execution does not fit: what takes most of the memory, and what would help."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.memory import forecast_memory
from shardwise.plan.search import Choice, considered, sized, sizes_on
from shardwise.plan.work import Work, work_of
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.forecast import MemoryForecast
from shardwise.units import GIB, format_bytes, format_gib

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
_STATES = ("weights", "gradients", "optimizer")


def why_not(work: Work, memory: MemoryForecast) -> str:
    """Why an execution does not fit, what takes most of the memory, and what would help."""
    worst = max(memory.ranks, key=lambda rank: rank.peak_bytes)
    part = max(worst.parts, key=lambda name: worst.parts[name])
    need, names = f"needs {format_gib(memory.peak_bytes)}, at most ", _NAMES[part]
    need += f"{_too_much(memory.peak_high_bytes, memory.capacity_bytes)} at {memory.peak_instant}"
    return f"{need}: {names} {format_gib(worst.parts[part])} of it; {_remedy(part, work, memory)}"


def _too_much(need: int, capacity: int) -> str:
    """Both, with as many digits as tell them apart."""
    if format_gib(need) == format_gib(capacity):
        return f"{need / GIB:.5g} GiB of {capacity / GIB:.5g} GiB, {format_bytes(need - capacity)} too much,"
    return f"{format_gib(need)} of {format_gib(capacity)}"


def _remedy(part: str, work: Work, memory: MemoryForecast) -> str:
    if part in _STATES:
        if not work.sharded:
            lora = ", or use lora" if work.job.method == "full" else ""
            enough = _fits_in_shards(work, memory.capacity_bytes)
            return "shard them (fsdp)" if enough else f"shard them over more GPUs (fsdp){lora}"
        return "use more GPUs" if work.job.method != "full" else "use more GPUs, or method: lora"
    if part == "logits":
        chunked = replace(work, execution=replace(work.execution, loss="chunked"))
        return "train with loss: chunked" if chunked.head_tokens < work.head_tokens else _less_at_once(work)
    if part == "communication":
        kept = work.sharded and not work.execution.layout.reshard_after_forward
        return "free gathered weights after forward (fsdp)" if kept else "use a smaller model or precision"
    if work.execution.recompute != "full" and not work.execution.saves_on_host:
        return "recompute activations (gradient_checkpointing: full)"
    return _less_at_once(work)


def _less_at_once(work: Work) -> str:
    return "lower train.micro_batch_size" if work.execution.micro_batch_size > 1 else "shorten data.max_length"


def _fits_in_shards(work: Work, capacity: int) -> bool:
    """Whether a micro-batch fits the same GPUs where each holds its share of all states: the smallest, or a larger one
    that is the only one of its step, so that no earlier gradients lie beside it."""
    job, model, layout = work.job, work.model, Layout(dp_shard=work.cluster.num_gpus)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=work.cluster)
    bases, _ = considered(job, model, choice)
    if layout.dp_shard == 1 or not bases:
        return False
    sizes = sizes_on(job, layout.data_world_size)
    tried = (sized(base, job, size) for size in sizes for base in bases)
    works = (work_of(job, model=model, cluster=work.cluster, execution=one, inventory=work.inventory) for one in tried)
    return any(forecast_memory(one).peak_high_bytes <= capacity for one in works)
