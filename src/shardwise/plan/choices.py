"""The executions that a job leaves open: every legal combination of what it says `auto` for.

A stated value restricts the search and is obeyed. What the trainer accepts is not decided here but in `spec.support`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt

from shardwise.errors import UnsupportedError
from shardwise.plan.types import TYPES
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job, LayoutSpec
from shardwise.spec.layout import (
    AXES,
    STRATEGIES,
    Attention,
    Execution,
    Layout,
    LossKind,
    Recompute,
    accumulation_steps,
)
from shardwise.spec.model import ModelShape
from shardwise.units import MIB

#: From the simplest to the most intricate: what is preferred where times are alike. FSDP stands before ZeRO-2 because
#: it holds less.
STRATEGY_ORDER = ("single", "ddp", "zero1", "fsdp", "zero2", "hsdp")
RECOMPUTE_ORDER: tuple[Recompute, ...] = ("none", "selective", "full")

#: Whole logits are kept where one copy of a micro-batch's is at most this large: then chunks would save little, and
#: cost a second product with the head.
FULL_LOGITS_BYTES = 64 * MIB

#: Axes that forecasts of memory and time know. What is not among them has no forecast.
_FORECAST_AXES = frozenset({"dp_replicate", "dp_shard"})

_LARGEST_POWER = 1024
_LARGEST_DIVISOR = 64


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A strategy on so many of the cluster's GPUs, or the sentence that says why there is none."""

    strategy: str
    layout: Layout
    cluster: Cluster
    reason: str | None = None


def layouts(job: Job, cluster: Cluster) -> Iterator[Choice]:
    """The layouts to consider, each on the cluster or, for goals that count GPUs, on parts of it too.

    Raises:
        UnsupportedError: a stated layout needs more GPUs than there are, or cannot be formed.
    """
    for part in _parts(job, cluster):
        if job.layout == "auto":
            yield from _every_strategy(part)
        else:
            yield _stated(job, part)


def _parts(job: Job, cluster: Cluster) -> list[Cluster]:
    """The cluster, and before it smaller ones where fewer GPUs may be the better answer."""
    stated = isinstance(job.layout, LayoutSpec)
    if job.goal == "fastest" or stated or cluster.gpu.kind == "cpu":
        return [cluster]
    inside = cluster.node.num_gpus
    parts = [
        replace(cluster, node=replace(cluster.node, num_gpus=n), num_nodes=1, network=None) for n in _powers(inside)
    ]
    parts += [replace(cluster, num_nodes=n) for n in _powers(cluster.num_nodes) if n > 1]
    return parts


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    powers = [1 << e for e in range(most.bit_length()) if 1 << e < most]
    return [*powers, most]


def _every_strategy(cluster: Cluster) -> Iterator[Choice]:
    world = cluster.num_gpus
    if world == 1:
        yield Choice(strategy="single", layout=Layout(), cluster=cluster)
        for name in STRATEGIES:
            reason = f"{name} spreads the work over at least 2 GPUs; this is 1"
            yield Choice(strategy=name, layout=Layout(), cluster=cluster, reason=reason)
        return
    yield from (_named(name, cluster) for name in STRATEGIES)


def _named(name: str, cluster: Cluster) -> Choice:
    if name == "hsdp" and (cluster.num_nodes == 1 or cluster.node.num_gpus == 1):
        reason = "hsdp shards inside each node and replicates between nodes; it needs at least 2 nodes of 2 GPUs"
        return Choice(strategy=name, layout=Layout(dp_shard=cluster.num_gpus), cluster=cluster, reason=reason)
    layout = Layout.from_strategy(name, world_size=cluster.num_gpus, gpus_per_node=cluster.node.num_gpus)
    return Choice(strategy=name, layout=layout, cluster=cluster)


def _stated(job: Job, cluster: Cluster) -> Choice:
    if isinstance(job.layout, LayoutSpec):
        layout = job.layout.to_layout()
    else:
        try:
            layout = Layout.from_strategy(job.layout, world_size=cluster.num_gpus, gpus_per_node=cluster.node.num_gpus)
        except ValueError as error:
            raise UnsupportedError(f"layout: {error}") from None
    if layout.world_size > cluster.num_gpus:
        raise UnsupportedError(
            f"layout multiplies out to {layout.world_size} GPUs, and the hardware is {cluster.name}; "
            "lower its degrees or name more GPUs"
        )
    return Choice(strategy=layout.strategy, layout=layout, cluster=cluster)


def not_forecast(layout: Layout) -> str | None:
    """Why no forecast is made for a layout; None where one is."""
    foreign = [axis for axis in (*AXES, "ep") if getattr(layout, axis) > 1 and axis not in _FORECAST_AXES]
    if foreign:
        return f"{layout.strategy} is not forecast by this version, which knows nothing of {', '.join(foreign)}"
    return None


def executions(job: Job, model: ModelShape, choice: Choice) -> Iterator[list[Execution]]:
    """Executions of a layout, one list per recompute kind, each with growing micro-batches."""
    train = job.train
    recomputes = RECOMPUTE_ORDER if train.gradient_checkpointing == "auto" else (train.gradient_checkpointing,)
    base = _base(job, model, choice)
    for recompute in recomputes:
        yield [
            replace(
                base,
                gradient_checkpointing=recompute,
                micro_batch_size=size,
                gradient_accumulation_steps=accumulation_steps(
                    global_batch_size=train.global_batch_size,
                    micro_batch_size=size,
                    data_world_size=choice.layout.data_world_size,
                ),
                loss=_loss(job, model, base, size),
            )
            for size in micro_batch_sizes(job, choice.layout)
        ]


def _base(job: Job, model: ModelShape, choice: Choice) -> Execution:
    train = job.train
    default = "fp32" if choice.cluster.gpu.kind == "cpu" else "mixed"
    return Execution(
        layout=choice.layout,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        precision=default if train.precision == "auto" else train.precision,
        optimizer="adamw" if train.optimizer == "auto" else train.optimizer,
        offload="none" if train.offload == "auto" else train.offload,
        attn_implementation=_attention(job, model),
        compile=train.compile,
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


def micro_batch_sizes(job: Job, layout: Layout) -> list[int]:
    """Powers of two, and divisors of what one rank sees of a global batch; in growing order."""
    if job.train.micro_batch_size != "auto":
        return [job.train.micro_batch_size]
    if job.data.packing and str(job.train.attn_implementation).startswith("flash"):
        return [1]  # spec/support.py says why
    share = -(-job.train.global_batch_size // layout.data_world_size)
    powers = {1 << e for e in range(_LARGEST_POWER.bit_length()) if 1 << e <= share}
    divisors = {n for n in range(1, min(_LARGEST_DIVISOR, isqrt(share) * share) + 1) if share % n == 0}
    return sorted(powers | divisors)
