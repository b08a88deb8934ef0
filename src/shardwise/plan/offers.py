"""Which hardware? The cheapest, fastest and smallest of the catalogue, or of a list, on which a job fits.

Laying a job out on every GPU in every size would take minutes. What fits is found first, which depends on a GPU's
memory alone; then sizes are laid out in the order of the best that they could reach, until nothing better can follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from shardwise.catalog.prices import cited
from shardwise.errors import UnsupportedError
from shardwise.plan.answer import answer
from shardwise.plan.market import Found, Market, figure
from shardwise.plan.search.question import ask, on_hardware
from shardwise.spec.attention import stated_attention_refusal
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal, Job
from shardwise.spec.model import ModelShape
from shardwise.spec.offers import Offer, Offers, Range
from shardwise.spec.plan import Candidate, Plan
from shardwise.units import format_seconds

#: More GPUs of one kind are offered only where a job fits on so many of none, and then up to the second number.
_MOST_GPUS, MOST_GPUS_OFFERED = 64, 1024
#: So many kinds of GPU are laid out in full for the job's goal, and one for each of the others.
_LAID_OUT = 6
GOALS: tuple[Goal, ...] = ("cheapest", "fastest", "fewest-gpus")


def best_of_catalogue(job: Job, *, model: ModelShape, kinds: Sequence[Sequence[Cluster]]) -> Plan:
    """The plan on the best hardware for the job's goal, with what else was compared.

    Args:
        job: what is asked; its hardware is open.
        model: its model's shape.
        kinds: of each GPU the sizes it is offered in, the smallest first.

    Raises:
        UnsupportedError: the job asks for what cannot be forecast at all.
    """
    question = ask(job, model=model, cluster=kinds[0][0])
    market = Market(question, [[size for size in kind if size.num_gpus <= _MOST_GPUS] for kind in kinds])
    if not market.open:
        market = Market(question, kinds)
    found = market.best(job.goal, kinds=_LAID_OUT)
    if not found:
        largest = max((kind[-1] for kind in market.able or market.kinds), key=_memory)
        return _as_asked(answer(market.on(largest)), job, list(_not_fitting(market)), among=kinds)
    others = [size.name for goal in GOALS if goal != job.goal for size, _ in market.best(goal, kinds=1)]
    compared = market.laid_out(job.goal, also=others)
    options = [*_compared(compared), *_passed_over(market, compared, job.goal), *_not_fitting(market)]
    return _as_asked(answer(market.on(found[0][0])), job, options, among=kinds)


def best_of_list(job: Job, *, model: ModelShape, clusters: Sequence[Cluster]) -> Plan:
    """The plan on the best of some alternatives, each planned as if it were the job's hardware.

    Raises:
        UnsupportedError: the job can be planned on none of them.
    """
    question = ask(job, model=model, cluster=clusters[0])
    plans: list[tuple[Cluster, Plan]] = []
    unable = {c.name: why for c in clusters if (why := stated_attention_refusal(job, c.gpu))}
    able = [cluster for cluster in clusters if cluster.name not in unable]
    refused = [_unfit(cluster, unable[cluster.name]) for cluster in clusters if able and cluster.name in unable]
    for cluster in able or clusters:
        try:
            plans.append((cluster, answer(on_hardware(question, cluster))))
        except UnsupportedError as error:
            refused.append(_unfit(cluster, str(error)))
            if len(refused) == len(clusters):
                raise
    fitting = [(c.part(made.best.execution.layout.world_size), made.best) for c, made in plans if made.best]
    lacking = [_unfit(cluster, made.rejected[0].reason) for cluster, made in plans if made.best is None]
    ranked = sorted(plans, key=lambda one: _figure_of(job.goal, *one))
    found = sorted(fitting, key=lambda one: figure(job.goal, one[0], step_seconds=one[1].time.step_seconds))
    return _as_asked(ranked[0][1], job, [*_compared(found), *lacking, *refused], among=[clusters])


def _figure_of(goal: Goal, cluster: Cluster, made: Plan) -> tuple[float, ...]:
    """Of what a plan chose; where nothing fits, the more memory the nearer."""
    if made.best is None:
        return inf, -float(_memory(cluster))
    part = cluster.part(made.best.execution.layout.world_size)
    return figure(goal, part, step_seconds=made.best.time.step_seconds)


def _memory(cluster: Cluster) -> int:
    return cluster.num_gpus * cluster.gpu.usable_bytes


def _as_asked(made: Plan, job: Job, options: Sequence[Offer], *, among: Sequence[Sequence[Cluster]]) -> Plan:
    prices = cited(cluster.gpu.name for kind in among for cluster in kind)
    offers = Offers(
        goal=job.goal,
        price_date=prices.date if prices else None,
        price_source=prices.source if prices else None,
        options=tuple(options),
    )
    asked = job.to_json()
    return replace(made, job={**asked, "hardware": made.job["hardware"]}, offers=offers)


def _compared(found: Sequence[Found]) -> Iterator[Offer]:
    """What was laid out, in the order given, each with the goals that it is the best for."""
    best: dict[Goal, str] = {
        goal: min(found, key=lambda one: figure(goal, one[0], step_seconds=one[1].time.step_seconds))[0].name
        for goal in GOALS
        if found and any(size.gpu.usd_per_hour or goal != "cheapest" for size, _ in found)
    }
    for size, candidate in found:
        yield _offer(size, candidate, best_for=tuple(goal for goal, name in best.items() if name == size.name))


def _offer(size: Cluster, candidate: Candidate, *, best_for: tuple[Goal, ...]) -> Offer:
    layout, time, price = candidate.execution.layout, candidate.time, size.gpu.usd_per_hour
    hourly = None if price is None else (price[0] * size.num_gpus, price[1] * size.num_gpus)
    hours = None if time.total_seconds is None else time.total_seconds / 3600
    return Offer(
        hardware=size.name,
        num_gpus=size.num_gpus,
        fits=True,
        best_for=best_for,
        strategy=layout.strategy,
        written=layout.written,
        peak_bytes=candidate.memory.peak_bytes,
        capacity_bytes=candidate.memory.capacity_bytes,
        step_seconds=time.step_seconds,
        total_seconds=time.total_seconds,
        usd_per_hour=hourly,
        usd=_times(hourly, hours),
        usd_per_million_tokens=_times(hourly, 1e6 / time.tokens_per_second / 3600),
    )


def _times(rate: Range | None, hours: float | None) -> Range | None:
    return None if rate is None or hours is None else (rate[0] * hours, rate[1] * hours)


def _passed_over(market: Market, found: Sequence[Found], goal: Goal) -> Iterator[Offer]:
    """Each GPU on which the job fits too, in the size that could be best, and why it was not laid out."""
    known = {size.gpu.name for size, _ in found}
    (best, chosen), *_ = found
    reached = figure(goal, best, step_seconds=chosen.time.step_seconds)
    at_least = {size.name: figure(goal, size, step_seconds=market.at_least(size)) for size in market.open}
    kinds: dict[str, Cluster] = {}
    for size in sorted(market.open, key=lambda size: at_least[size.name]):
        if size.gpu.name not in known:
            kinds.setdefault(size.gpu.name, size)
    for size in kinds.values():
        times = at_least[size.name][0] / reached[0]
        yield Offer(
            hardware=size.name,
            num_gpus=size.num_gpus,
            fits=True,
            capacity_bytes=size.gpu.usable_bytes,
            reason=_why_passed_over(goal, size, seconds=market.at_least(size), times=times),
        )


def _why_passed_over(goal: Goal, size: Cluster, *, seconds: float, times: float) -> str:
    if goal == "cheapest":
        if size.gpu.usd_per_hour is None:
            return "no price known"
        return f"at least {times:.2f} times the cost"
    if goal == "fastest":
        return f"at least {format_seconds(seconds)} a step, {times:.2f} times as long"
    return "larger" if times == 1 else f"{times:.0f} times as many GPUs"


def _not_fitting(market: Market) -> Iterator[Offer]:
    fitting = {size.gpu.name for size in market.open}
    for kind in market.kinds:
        if kind[0].gpu.name not in fitting:
            yield _unfit(kind[-1], market.missing(kind[-1]))


def _unfit(cluster: Cluster, reason: str) -> Offer:
    return Offer(
        hardware=cluster.name,
        num_gpus=cluster.num_gpus,
        fits=False,
        capacity_bytes=cluster.gpu.usable_bytes,
        reason=reason,
    )
