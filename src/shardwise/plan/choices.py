"""The executions that a job leaves open: every legal combination of what it says `auto` for.

A stated value restricts the search and is obeyed. What the trainer accepts is not decided here but in `spec.support`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.plan.types import TYPES
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Attention, Execution, LossKind, Offload, Recompute, accumulation_steps
from shardwise.spec.job import Goal, Job, LayoutSpec
from shardwise.spec.layout import STRATEGIES, Layout, Schedule
from shardwise.spec.model import ModelShape
from shardwise.spec.support import impossibilities, misfit, not_trained_under, open_refusal
from shardwise.units import MIB

RECOMPUTE_ORDER: tuple[Recompute, ...] = ("none", "selective", "full")
SCHEDULE_ORDER: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved", "zero_bubble", "sequential")

#: Whole logits are kept where one copy of a micro-batch's is at most this large: then chunks would save little, and
#: cost a second product with the head.
FULL_LOGITS_BYTES = 64 * MIB

#: Every micro-batch up to so many sequences is looked at; of larger ones, those that differ by more than this share.
_EVERY_SIZE, _SIZE_STEP = 64, 1 / 8

#: Up to so many GPUs of a node, or nodes, every number is looked at where a goal asks for fewer; beyond, not every one.
#: 72 is the largest node there is.
_EVERY_NUMBER: dict[Goal, int] = {"fewest-gpus": 72, "cheapest": 16}

#: What dp_shard may shard, as fields of a layout. Keeping gathered weights is ZeRO-2 by another name.
_SHARDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"zero_stage": 2, "reshard_after_forward": False},
    {"zero_stage": 1, "reshard_after_forward": False},
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A layout on so many of the cluster's GPUs, or the sentence that says why it is left out."""

    strategy: str
    layout: Layout
    cluster: Cluster
    reason: str | None = None


def layouts(job: Job, model: ModelShape, cluster: Cluster) -> Iterator[Choice]:
    """The layouts that a job leaves open on all GPUs of a cluster, each once; those left out with their reason.

    Raises:
        UnsupportedError: a stated layout needs more GPUs than there are, or cannot be formed.
    """
    if job.stated_layout is not None:
        yield _stated(job.stated_layout, model, cluster)
        return
    among = job.layout if isinstance(job.layout, list) else None
    named: set[str] = set()
    for choice in _every_layout(job, model, cluster):
        if among is None or choice.strategy in among or cluster.num_gpus == 1:
            named.add(choice.strategy)
            yield choice
    for name in among or STRATEGIES:
        if name not in named:
            yield Choice(strategy=name, layout=Layout(), cluster=cluster, reason=_why_impossible(name, cluster))


def _why_impossible(name: str, cluster: Cluster) -> str:
    world, unit = cluster.num_gpus, cluster.unit
    if name == "hsdp" and world > 1:
        return f"hsdp needs groups of at least 2 {unit} and at least 2 such groups; {world} {unit} make none"
    return f"the work is spread over at least 2 {unit}; this is 1"


def _every_layout(job: Job, model: ModelShape, cluster: Cluster) -> Iterator[Choice]:
    """Every product of degrees that this model and the trainer allow, with what each leaves open.

    A degree that is not allowed by itself is not multiplied with others; it is given once, with the reason.
    """

    def reason(layout: Layout) -> str | None:
        return misfit(model, layout) or open_refusal(method=job.method, layout=layout, model=model)

    allowed: dict[str, list[int]] = {}
    for axis in ("cp", "tp", "pp"):
        single = {degree: list(_variants({axis: degree})) for degree in divisors(cluster.num_gpus)}
        allowed[axis] = [degree for degree, ways in single.items() if not all(reason(way) for way in ways)]
        for degree, ways in single.items():
            if degree not in allowed[axis]:
                first = {way.strategy: way for way in reversed(ways)}
                for strategy, way in first.items():
                    yield Choice(strategy=strategy, layout=way, cluster=cluster, reason=reason(way))
    for degrees in products(cluster.num_gpus, allowed):
        for layout in _variants(degrees):
            yield Choice(strategy=layout.strategy, layout=layout, cluster=cluster, reason=reason(layout))


def products(world: int, allowed: dict[str, list[int]]) -> Iterator[dict[str, int]]:
    """Every way to write a number of GPUs as dp_replicate x dp_shard x tp x pp x cp, of some axes certain degrees.

    Those that shard most come first.
    """
    axes = (*allowed, "dp_shard")

    def rest(left: int, index: int) -> Iterator[dict[str, int]]:
        if index == len(axes):
            yield {"dp_replicate": left}
            return
        for degree in reversed(divisors(left)):
            if degree in allowed.get(axes[index], (degree,)):
                for others in rest(left // degree, index + 1):
                    yield {axes[index]: degree, **others}

    return rest(world, 0)


@cache
def divisors(number: int) -> tuple[int, ...]:
    """In growing order."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def _variants(degrees: dict[str, int]) -> Iterator[Layout]:
    """What a product of degrees leaves open, the simplest first."""
    shardings = _SHARDINGS if degrees.get("dp_shard", 1) > 1 else _SHARDINGS[:1]
    schedules: tuple[Schedule, ...] = SCHEDULE_ORDER if degrees.get("pp", 1) > 1 else ("1f1b",)
    for sharding in shardings:
        for schedule in schedules:
            yield Layout(**degrees, **sharding, schedule=schedule)


def _stated(stated: LayoutSpec | str, model: ModelShape, cluster: Cluster) -> Choice:
    if isinstance(stated, LayoutSpec):
        layout = stated.to_layout()
    else:
        try:
            layout = Layout.from_strategy(stated, world_size=cluster.num_gpus, gpus_per_node=cluster.node.num_gpus)
        except ValueError as error:
            raise UnsupportedError(f"layout: {error}") from None
    if layout.world_size > cluster.num_gpus:
        raise UnsupportedError(
            f"layout multiplies out to {layout.world_size} {cluster.unit}, and the hardware is {cluster.name}; "
            "lower its degrees or name more of them"
        )
    return Choice(strategy=layout.strategy, layout=layout, cluster=cluster, reason=misfit(model, layout))


def parts(job: Job, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, and before it smaller ones where a goal asks for fewer GPUs, the smallest first.

    `fewest-gpus` looks at the numbers of GPUs in a node and then of nodes, beyond `_EVERY_NUMBER` an eighth apart;
    `cheapest` at powers of two of nodes.
    """
    whole = isinstance(job.layout, LayoutSpec) or cluster.gpu.kind == "cpu"
    if job.goal != "fastest" and not whole:
        inside, nodes = cluster.node.num_gpus, cluster.num_nodes
        every = _EVERY_NUMBER[job.goal]
        for count in _numbers(inside if nodes == 1 else inside + 1, every=every):
            yield replace(cluster, node=replace(cluster.node, num_gpus=count), num_nodes=1, network=None)
        counts = _numbers(nodes, every=every)[1:] if job.goal == "fewest-gpus" else _powers(nodes)
        yield from (replace(cluster, num_nodes=count) for count in counts)
    yield cluster


def _numbers(most: int, *, every: int) -> list[int]:
    """1, 2, 3, ... below `most`; those beyond `every` are an eighth apart."""
    found: list[int] = []
    number = 1
    while number < most:
        found.append(number)
        number += 1 if number < every else number // 8
    return found


def _powers(most: int) -> list[int]:
    """2, 4, 8, ... below `most`."""
    return [1 << e for e in range(1, most.bit_length()) if 1 << e < most]


def offloads(job: Job, cluster: Cluster) -> tuple[Offload, ...]:
    """The offloads that a job leaves open, in turn: the next is looked at where nothing fits with those before it.

    Every step waits for the host then, so that none is chosen where there is another way. `all` is `parameters`.
    """
    if job.train.offload != "auto":
        return (job.train.offload,)
    # CPU processes have no other memory to go to.
    return ("none",) if cluster.gpu.kind == "cpu" else ("none", "optimizer", "parameters")


def bases(job: Job, model: ModelShape, choice: Choice) -> Iterator[Execution]:
    """Executions of a layout at a micro-batch of one: one for each recompute that the job leaves open.

    An offload that it leaves open is none: `offloads` says where that is another question. Of what is left open nothing
    comes out that the trainer would refuse.
    """
    return (base for base in _bases(job, model, choice) if not _is_left_out(job, base))


def _is_left_out(job: Job, base: Execution) -> bool:
    reasons = not_trained_under(base)
    if job.stated_layout is None:
        return bool(reasons)
    plain = replace(base, gradient_checkpointing="none")
    return job.train.gradient_checkpointing == "auto" and reasons != not_trained_under(plain)


def _bases(job: Job, model: ModelShape, choice: Choice) -> Iterator[Execution]:
    train = job.train
    recomputes = RECOMPUTE_ORDER if train.gradient_checkpointing == "auto" else (train.gradient_checkpointing,)
    default = "fp32" if choice.cluster.gpu.kind == "cpu" else "mixed"
    for recompute in recomputes:
        yield Execution(
            layout=choice.layout,
            micro_batch_size=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing=recompute,
            precision=default if train.precision == "auto" else train.precision,
            optimizer="adamw" if train.optimizer == "auto" else train.optimizer,
            offload="none" if train.offload == "auto" else train.offload,
            attn_implementation=_attention(job, model),
            compile=train.compile,
        )


def why_left_out(job: Job, model: ModelShape, choice: Choice) -> str | None:
    """Why a layout is not considered: it cannot be formed or trained, or contradicts what the job states."""
    if choice.reason is not None:
        return choice.reason
    size, loss = job.train.micro_batch_size, job.train.loss
    first = next(_bases(job, model, choice))
    stated = replace(first, micro_batch_size=1 if size == "auto" else size, loss=first.loss if loss == "auto" else loss)
    nothing_left = not any(bases(job, model, choice))
    reasons = impossibilities(job, stated, model=model) or (not_trained_under(first) if nothing_left else [])
    return "; ".join(reasons) or None


def sized(base: Execution, job: Job, model: ModelShape, size: int) -> Execution:
    """An execution with so many sequences per forward."""
    return replace(
        base,
        micro_batch_size=size,
        gradient_accumulation_steps=accumulation_steps(
            global_batch_size=job.train.global_batch_size,
            micro_batch_size=size,
            data_world_size=base.layout.data_world_size,
        ),
        loss=_loss(job, model, base, size),
    )


def _attention(job: Job, model: ModelShape) -> Attention:
    if job.train.attn_implementation != "auto":
        return job.train.attn_implementation
    return "eager" if model.attention_softcap or model.eager_attention else "sdpa"


def _loss(job: Job, model: ModelShape, base: Execution, micro_batch_size: int) -> LossKind:
    if job.train.loss != "auto":
        return job.train.loss
    if not model.plain_head:
        return "full"
    logits = micro_batch_size * job.data.max_length * model.vocab_size * TYPES[base.precision].compute
    return "chunked" if logits > FULL_LOGITS_BYTES else "full"


def micro_batch_sizes(job: Job, layout: Layout) -> tuple[int, ...]:
    """The sizes worth considering, in growing order: for each number of forwards per step, the smallest that does.

    A larger one with as many forwards computes the same sequences and more padding, in more memory. Beyond
    `_EVERY_SIZE` sequences, sizes closer than `_SIZE_STEP` to one another are passed over: their times differ by less.
    """
    if job.train.micro_batch_size != "auto":
        return (job.train.micro_batch_size,)
    if job.data.packing and str(job.train.attn_implementation).startswith("flash"):
        return (1,)  # spec/support.py says why
    return _sizes(-(-job.train.global_batch_size // layout.data_world_size))


@cache
def _sizes(share: int) -> tuple[int, ...]:
    root = isqrt(share) + 1
    counts = {-(-share // size) for size in range(1, min(root, _EVERY_SIZE) + 1)}
    step, count = 0.0 if root <= _EVERY_SIZE else _SIZE_STEP, min(counts)
    while count > 1:
        counts.add(count := count - max(1, int(count * step)))
    return tuple(sorted({-(-share // count) for count in counts}))
