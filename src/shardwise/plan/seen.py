"""Forecasts the memory of a run for the rows that it saw, which may all be shorter than the longest of its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.plan.memory import Work, holdings_of, moments
from shardwise.plan.search import ask, work_on
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Lengths
from shardwise.spec.plan.seen import SeenMemory
from shardwise.spec.run import EVALUATION, FORWARD_BACKWARD, LOADING, OPTIMIZER, SAVING

#: Phases of the instants that belong to no forward or backward.
_PHASES = {
    "loading": LOADING,
    "optimizer step": OPTIMIZER,
    "exchange of new weights": OPTIMIZER,
    "evaluation": EVALUATION,
    "saving": SAVING,
}


def forecast_seen(
    job: Job,
    *,
    model: ModelShape,
    cluster: Cluster,
    execution: Execution,
    first: int,
    later: int,
    document: float | None = None,
) -> SeenMemory:
    """The peaks of every rank, where no sequence of the first forward of a step is longer than `first` tokens, and none
    of the others than `later`: gradients that are added up lie beside these alone. A pipeline has several in flight,
    and is forecast for the longest."""
    seen = [(execution, max(first, later))]
    if later and execution.layout.pp == 1:
        seen = [(replace(execution, gradient_accumulation_steps=1), first), (execution, later)]
    phases: dict[int, dict[str, int]] = {}
    for alike, length in seen:
        lengths = Lengths(longest=length, mean=length, document=document)
        for rank, most in _phases(work_on(ask(job, model=model, cluster=cluster, lengths=lengths), cluster, alike)):
            known = phases.setdefault(rank, {})
            known |= {phase: max(size, known.get(phase, 0)) for phase, size in most.items()}
    peaks = {rank: max(size for phase, size in most.items() if phase != LOADING) for rank, most in phases.items()}
    return SeenMemory(first=first, later=later, peaks=peaks, phases=phases)


def _phases(work: Work) -> Iterator[tuple[int, dict[str, int]]]:
    """Of each rank the most that is alive in each phase."""
    for holding in holdings_of(work):
        most: dict[str, int] = {}
        for instant, alive in moments(work, holding):
            phase = _PHASES.get(instant, FORWARD_BACKWARD)
            most[phase] = max(round(sum(alive.values())), most.get(phase, 0))
        yield from ((rank, most) for rank in holding.ranks(work.execution.layout))
