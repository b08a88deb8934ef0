"""The layouts that a job leaves open: products of degrees that its model and the trainer allow"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isqrt
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import STRATEGIES, Layout, Schedule
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Sentence
from shardwise.spec.support.splits import as_trained
from shardwise.spec.support.trained import misfit, refusal

SCHEDULE_ORDER: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved", "zero_bubble", "sequential")

#: The axes whose ranks see the same samples.
AXES_OF_A_COPY = ("cp", "tp", "pp")

#: `auto` cuts no sequence into fewer tokens a rank: the exchange then takes longer than it saves.
_LEAST_TOKENS = 4096

#: What dp_shard may shard, as fields of a layout. Keeping gathered weights is ZeRO-2's other name.
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
    """The layouts that a job leaves open on all GPUs, each once; those left out with a reason.
    Raises UnsupportedError: a stated layout needs more GPUs than there are, or cannot be formed."""
    if job.stated_layout is not None:
        layout = _formed(job, cluster)
        reason = misfit(as_trained(job, model), layout)
        yield Choice(strategy=layout.strategy, layout=layout, cluster=cluster, reason=reason)
        return
    among = job.layout if isinstance(job.layout, list) else None
    named: set[str] = set()
    for choice in _every_layout(job, model, cluster):
        if among is None or choice.strategy in among or cluster.num_gpus == 1:
            named.add(choice.strategy)
            yield choice
    world, unit = cluster.num_gpus, cluster.unit
    for name in among or STRATEGIES:
        reason = Sentence(f"the work is spread over at least 2 {unit}; this is 1", "alone")
        if name == "hsdp" and world > 1:
            reason = f"hsdp needs groups of at least 2 {unit} and at least 2 such groups; {world} {unit} make none"
        elif " x " in name and world > 1:
            reason = f"the {world} {unit} of {cluster.name} make no {name} that this model can be cut into"
        if name not in named:
            yield Choice(strategy=name, layout=Layout(), cluster=cluster, reason=reason)


def _every_layout(job: Job, model: ModelShape, cluster: Cluster) -> Iterator[Choice]:
    """Every product of allowed degrees, and each that is not allowed, once, with the reason."""
    allowed = _allowed(job, model, cluster)
    for axis in AXES_OF_A_COPY:
        for degree in divisors(cluster.num_gpus):
            if degree not in allowed[axis]:
                first = {way.strategy: way for way in reversed(_variants(**{axis: degree}))}
                yield from (_choice(job, model, way, cluster) for way in first.values())
    for product in products(cluster.num_gpus, allowed):
        yield from (_choice(job, model, layout, cluster) for layout in _variants(**product))


def _choice(job: Job, model: ModelShape, layout: Layout, cluster: Cluster) -> Choice:
    reason = _left_out(job, model, layout, cluster)
    return Choice(strategy=layout.strategy, layout=layout, cluster=cluster, reason=reason)


def _left_out(job: Job, model: ModelShape, layout: Layout, cluster: Cluster) -> str | None:
    model = as_trained(job, model)
    # Its collectives are in the middle of each block, and wait for the slowest link.
    if cluster.num_nodes > 1 and layout.tp > cluster.node.num_gpus:
        return f"tp = {layout.tp} would go beyond the {cluster.node.num_gpus} {cluster.unit} of a machine"
    if layout.cp > 1 and job.data.max_length < layout.cp * _LEAST_TOKENS:
        return f"cp = {layout.cp} would leave a rank less than {_LEAST_TOKENS:,} tokens of a row, which is not worth it"
    return misfit(model, layout) or refusal(method=job.method, layout=layout, model=model)


def _allowed(job: Job, model: ModelShape, cluster: Cluster) -> dict[str, list[int]]:
    """Of each axis whose ranks see the same samples, the degrees that are trained by themselves."""

    def is_allowed(axis: str, degree: int) -> bool:
        return any(_left_out(job, model, way, cluster) is None for way in _variants(**{axis: degree}))

    degrees = divisors(cluster.num_gpus)
    return {axis: [degree for degree in degrees if is_allowed(axis, degree)] for axis in AXES_OF_A_COPY}


def lean_layouts(job: Job, model: ModelShape, cluster: Cluster) -> Iterator[Choice]:
    """The open layouts that shard whatever they can and have one micro-batch in flight. Raises
    UnsupportedError: a stated layout needs more GPUs than there are, or cannot be formed."""
    if job.stated_layout is not None:
        yield from (choice for choice in layouts(job, model, cluster) if choice.reason is None)
        return
    among = job.layout if isinstance(job.layout, list) and cluster.num_gpus > 1 else None
    # Replicas hold whole copies: what is lean shards over all ranks.
    lean = [one for one in products(cluster.num_gpus, _allowed(job, model, cluster)) if one["dp_replicate"] == 1]
    for product in reversed(lean):
        degrees: dict[str, Any] = {**product, "schedule": "sequential" if product["pp"] > 1 else "1f1b"}
        choice = _choice(job, model, Layout(**degrees), cluster)
        if choice.reason is None and (among is None or choice.strategy in among):
            yield choice


def products(
    left: int, allowed: dict[str, list[int]], axes: tuple[str, ...] = (*AXES_OF_A_COPY, "dp_shard")
) -> Iterator[dict[str, int]]:
    """Products dp_replicate x dp_shard x tp x pp x cp of so many GPUs, the most sharded first."""
    if not axes:
        yield {"dp_replicate": left}
        return
    axis, *others = axes
    for degree in reversed(divisors(left)):
        if degree in allowed.get(axis, (degree,)):
            for rest in products(left // degree, allowed, tuple(others)):
                yield {axis: degree, **rest}


@cache
def divisors(number: int) -> tuple[int, ...]:
    """In growing order."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


@lru_cache(maxsize=2048)
def _variants(**degrees: int) -> tuple[Layout, ...]:
    """What a product of degrees leaves open, the simplest first."""
    shardings = _SHARDINGS if max(degrees.get(axis, 1) for axis in ("dp_shard", "cp")) > 1 else _SHARDINGS[:1]
    schedules: tuple[Schedule, ...] = SCHEDULE_ORDER if degrees.get("pp", 1) > 1 else ("1f1b",)
    return tuple(Layout(**degrees, **sharding, schedule=schedule) for sharding in shardings for schedule in schedules)


def can_be_formed(job: Job, cluster: Cluster) -> bool:
    """Whether so many GPUs are enough for a stated layout and its product; none stated: True."""
    try:
        return bool(_formed(job, cluster))
    except UnsupportedError:
        return False


def _formed(job: Job, cluster: Cluster) -> Layout:
    try:
        layout = job.layout_on(cluster) or Layout()
    except ValueError as error:
        raise UnsupportedError(f"layout: {error}") from None
    if layout.world_size > cluster.num_gpus:
        raise UnsupportedError(
            f"layout multiplies out to {layout.world_size} {cluster.unit}, and the hardware is {cluster.name}; "
            "lower its degrees or name more of them"
        )
    return layout
