"""The search: every legal execution of a job on a cluster, forecast, ranked for the goal, with a reason for each one
left out. Deterministic: the same job gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.plan.choices import Choice, executions, layouts
from shardwise.plan.explain import why, why_not
from shardwise.plan.inventory import take_inventory
from shardwise.plan.question import Question, at_mean_length, forecasts, left_out
from shardwise.plan.ranking import OTHERS_LISTED, arranged, ranked, ranking_of
from shardwise.plan.remedies import remedies
from shardwise.plan.timeline import forecast_time
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job
from shardwise.spec.layout import padded_length
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import Candidate, Cost, Lengths, MemoryForecast, Plan, Rejection
from shardwise.spec.support import not_trained


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The best candidates of one layout: those that fit by rank, or the one that needs least."""

    fitting: tuple[Candidate, ...] = ()
    least: Candidate | None = None
    rejection: Rejection | None = None


def make_plan(
    job: Job, *, model: ModelShape, cluster: Cluster, num_rows: int | None = None, lengths: Lengths | None = None
) -> Plan:
    """Forecasts every execution the job leaves open and chooses for its goal.

    Args:
        job: what is asked.
        model: its model's shape.
        cluster: the hardware.
        num_rows: training rows, for the duration of the whole run; None where they are not known.
        lengths: of the prepared data: memory is forecast for the longest sequences, time for the mean ones. None
            takes every sequence to be `data.max_length` long.

    Returns:
        The best candidate of each strategy first (the chosen one before all), a handful of others, then for each
        strategy that does not fit its least hungry execution. `rejected` has a sentence for each strategy left out.

    Raises:
        UnsupportedError: the job asks for what cannot be forecast or formed at all.
    """
    _check_length(job, model)
    limit = job.data.max_length
    question = Question(
        job=job,
        model=model,
        cluster=cluster,
        inventory=take_inventory(job, model),
        num_rows=job.data.num_rows if num_rows is None else num_rows,
        length=padded_length(limit if lengths is None else lengths.longest, max_length=limit),
        mean_length=padded_length(limit if lengths is None else ceil(lengths.mean), max_length=limit),
    )
    found = [_search(question, choice) for choice in layouts(job, cluster)]
    fitting = arranged([one.fitting for one in found], ranking_of(job.goal, cluster.gpu))
    return Plan(
        job=job.to_json(),
        hardware=hardware_json(cluster),
        model=_model_json(question),
        candidates=(*fitting, *(one.least for one in found if one.least is not None)),
        chosen=0 if fitting else None,
        rejected=_distinct(found),
        advice=() if fitting else tuple(remedies(question)),
    )


def _check_length(job: Job, model: ModelShape) -> None:
    length, most = job.data.max_length, model.max_position_embeddings
    if model.position_parameters and length > most:
        raise UnsupportedError(
            f"data.max_length is {length}, and the model has {most} learned positions; lower it to {most}"
        )
    if model.attention_softcap and job.train.attn_implementation == "sdpa":
        raise UnsupportedError(
            "train.attn_implementation is sdpa, which cannot cap scores as this model does; use eager"
        )


def _search(question: Question, choice: Choice) -> _Found:
    if choice.reason is not None:
        return _Found(rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason=choice.reason))
    groups = list(executions(question.job, question.model, choice))
    refusals = left_out(question, choice, groups[0][0])
    if refusals:
        return _Found(rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason="; ".join(refusals)))
    tried = list(forecasts(question, choice, groups))
    fitting = [(work, memory) for work, memory in tried if memory.peak_high_bytes <= memory.capacity_bytes]
    if not fitting:
        return _too_large(question, choice, tried)
    return _Found(fitting=_ranked_fitting(question, fitting, tried))


def _too_large(question: Question, choice: Choice, tried: list[tuple[Work, MemoryForecast]]) -> _Found:
    work, memory = min(tried, key=lambda one: one[1].peak_high_bytes)
    reason = why_not(work, memory)
    least = replace(_candidate(question, work, memory), fits=False, reasons=(reason,))
    return _Found(least=least, rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason=reason))


def _ranked_fitting(
    question: Question, fitting: list[tuple[Work, MemoryForecast]], tried: list[tuple[Work, MemoryForecast]]
) -> tuple[Candidate, ...]:
    candidates = [_candidate(question, work, memory) for work, memory in fitting]
    works = {id(candidate): work for candidate, (work, _) in zip(candidates, fitting, strict=True)}
    shown = ranked(candidates, ranking_of(question.job.goal, question.cluster.gpu))[: OTHERS_LISTED + 1]
    sizes = [(work.execution, memory) for work, memory in tried]
    return tuple(replace(c, reasons=why(works[id(c)], c, alternatives=sizes)) for c in shown)


def _candidate(question: Question, work: Work, memory: MemoryForecast) -> Candidate:
    time = forecast_time(at_mean_length(question, work), num_rows=question.num_rows)
    hourly = _usd_per_hour(work)
    usd = None if hourly is None or time.total_seconds is None else hourly * time.total_seconds / 3600
    return Candidate(
        execution=work.execution,
        fits=True,
        memory=memory,
        time=time,
        cost=Cost(usd=usd, usd_per_hour=hourly),
        not_trained=tuple(not_trained(question.job, work.execution, model=question.model)),
    )


def _usd_per_hour(work: Work) -> float | None:
    """All GPUs at the middle of the catalogue's range."""
    price = work.cluster.gpu.usd_per_hour
    return None if price is None else sum(price) / 2 * work.execution.layout.world_size


def _distinct(found: Iterable[_Found]) -> tuple[Rejection, ...]:
    """One rejection per strategy that fits nowhere: the last, which is that of the largest part of the cluster."""
    fitting = {candidate.execution.layout.strategy for one in found for candidate in one.fitting}
    rejections = {one.rejection.strategy: one.rejection for one in found if one.rejection is not None}
    return tuple(rejection for name, rejection in rejections.items() if name not in fitting)


def hardware_json(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plan.json has it."""
    return {"name": cluster.name, "num_gpus": cluster.num_gpus, **asdict(cluster)}


def _model_json(question: Question) -> dict[str, Any]:
    return {**question.model.to_json(), "num_trainable_parameters": question.inventory.trained_elements}
