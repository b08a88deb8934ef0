"""The executions that a job leaves open: combinations of its `auto` that the trainer accepts."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import isqrt

from shardwise.plan.search.layouts import Choice
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Checkpointing, Execution, Offload, Precision, accumulation_steps
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.attention import attention_refusal, documents_refusal
from shardwise.spec.support.trained import impossibilities, not_compiled, not_trained_under, tiles_mlp

#: What `auto` looks at; not at what takes memory and bandwidth of the host.
_OF_AUTO: tuple[Checkpointing, ...] = ("none", "selective", "full")
#: By the time that they cost.
RECOMPUTE_ORDER: tuple[Checkpointing, ...] = ("none", "selective", "selective_offloaded", "full", "offloaded")

#: Every micro-batch up to so many sequences is tried; beyond, those that differ by this share.
_EVERY_SIZE, _SIZE_STEP = 64, 1 / 8


def offloads(job: Job, cluster: Cluster) -> tuple[Offload, ...]:
    """The offloads that a job leaves open, the least first."""
    if job.train.offload != "auto":
        return (job.train.offload,)
    # CPU processes have no other memory to go to.
    return ("none",) if cluster.gpu.kind == "cpu" else ("none", "optimizer", "parameters")


def bases(job: Job, model: ModelShape, choice: Choice) -> Iterator[Execution]:
    """Executions of a layout at a micro-batch of one: one for each open recompute, if trained."""
    return (base for base in _bases(job, model, choice) if not _is_left_out(job, base))


def open_executions(job: Job, model: ModelShape, cluster: Cluster) -> list[Execution]:
    """Of one process, executions that differ in what blocks keep, for those a job leaves open."""
    alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
    return [replace(base, optimizer="adamw", offload="none", compile=False) for base in _bases(job, model, alone)]


def _is_left_out(job: Job, base: Execution) -> bool:
    reasons = not_trained_under(base)
    if job.stated_layout is None:
        return bool(reasons)
    plain = replace(base, gradient_checkpointing="none")
    return job.train.gradient_checkpointing == "auto" and reasons != not_trained_under(plain)


def _bases(job: Job, model: ModelShape, choice: Choice) -> Iterator[Execution]:
    train = job.train
    recomputes = _OF_AUTO if train.gradient_checkpointing == "auto" else (train.gradient_checkpointing,)
    on_cpu = choice.cluster.gpu.kind == "cpu"
    precision = precision_of(job, choice.cluster.gpu)
    compiles = why_eager(job, model, choice) is None if train.compile == "auto" else train.compile
    if not (on_cpu or compiles) and len(recomputes) > 1:
        recomputes = ("none", "full")  # eager, the host is the limit of what is selective
    attention = _attention(job, model, choice, precision)
    plain = Execution(
        layout=choice.layout,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        precision=precision,
        optimizer="adamw" if train.optimizer == "auto" else train.optimizer,
        offload="none" if train.offload == "auto" else train.offload,
        loss="chunked" if train.loss == "auto" else train.loss,
        attn_implementation=attention,
        compile=compiles,
        mlp="full" if train.mlp == "auto" else train.mlp,
    )
    for recompute in recomputes:
        base = plain.but(gradient_checkpointing=recompute)
        tiled = train.mlp == "auto" and tiles_mlp(job, base, model)
        yield replace(base, mlp="chunked") if tiled else base


def precision_of(job: Job, gpu: Gpu) -> Precision:
    """What a job states; `auto` is `mixed` where tensor cores compute in bfloat16, from compute
    capability 8.0 on (NVIDIA's CUDA programming guide, table of arithmetic), and `fp16` before."""
    if job.train.precision != "auto":
        return job.train.precision
    return "fp32" if gpu.kind == "cpu" else "mixed" if "bfloat16" in gpu.dense_flops else "fp16"


def why_eager(job: Job, model: ModelShape, choice: Choice) -> str | None:
    """Why `compile: auto` runs blocks eagerly; None where it compiles them."""
    if choice.cluster.gpu.kind == "cpu":
        return "on CPU processes it is not worth its seconds"
    gpu = choice.cluster.gpu
    if "bfloat16" not in gpu.dense_flops and precision_of(job, gpu) not in ("fp32", "fp16"):
        return f"inductor compiles no bfloat16 for {choice.cluster.gpu.name}"
    return not_compiled(job, choice.layout, model)


def considered(job: Job, model: ModelShape, choice: Choice) -> tuple[list[Execution], str | None]:
    """`bases`; none with the reason where a layout is left out by the job or the trainer."""
    if choice.reason is not None:
        return [], choice.reason
    every = list(_bases(job, model, choice))
    left = [base for base in every if not _is_left_out(job, base)]
    reasons = impossibilities(job, every[0], model=model) or ([] if left else not_trained_under(every[0]))
    return ([], "; ".join(reasons)) if reasons else (left, None)


def sized(base: Execution, job: Job, size: int) -> Execution:
    """An execution with so many sequences per forward."""
    ranks, batch = base.layout.data_world_size, job.train.global_batch_size
    steps = accumulation_steps(global_batch_size=batch, micro_batch_size=size, data_world_size=ranks)
    return base.but(micro_batch_size=size, gradient_accumulation_steps=steps)


def _attention(job: Job, model: ModelShape, choice: Choice, precision: Precision) -> Attention:
    if job.train.attn_implementation != "auto":
        return job.train.attn_implementation
    gpu, refused = choice.cluster.gpu, choice.layout.splits_rows or documents_refusal(job, model, "varlen")
    joined = job.data.packing or gpu.kind == "cpu"  # on GPUs other rows are joined where that is asked for
    if joined and not (refused or attention_refusal("varlen", gpu, precision=precision)):
        return "varlen"
    return "eager" if model.attention_softcap or model.eager_attention else "sdpa"


def sizes_on(job: Job, ranks: int) -> tuple[int, ...]:
    """Micro-batches for so many ranks that share the global batch, growing: for each number of
    forwards per step the smallest. Beyond `_EVERY_SIZE`, those within `_SIZE_STEP` are left out."""
    if job.train.micro_batch_size != "auto":
        return (job.train.micro_batch_size,)
    return _sizes(-(-job.train.global_batch_size // ranks))


@cache
def _sizes(share: int) -> tuple[int, ...]:
    root = isqrt(share) + 1
    counts = {-(-share // size) for size in range(1, min(root, _EVERY_SIZE) + 1)}
    step, count = 0.0 if root <= _EVERY_SIZE else _SIZE_STEP, min(counts)
    while count > 1:
        counts.add(count := count - max(1, int(count * step)))
    return tuple(sorted({-(-share // count) for count in counts}))
