"""What is asked of the planner, and the memory of the executions that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.plan.choices import Choice
from shardwise.plan.inventory import Inventory
from shardwise.plan.memory import forecast_memory, holdings_of
from shardwise.plan.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job
from shardwise.spec.layout import Execution
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import MemoryForecast


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, with what was derived from it once."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    num_rows: int | None


def work_on(question: Question, choice: Choice, execution: Execution) -> Work:
    """One execution of the question on a choice's part of the cluster."""
    return work_of(
        question.job,
        model=question.model,
        cluster=choice.cluster,
        execution=execution,
        inventory=question.inventory,
    )


def forecasts(
    question: Question, choice: Choice, groups: Iterable[list[Execution]]
) -> Iterator[tuple[Work, MemoryForecast]]:
    """Memory of each execution; a larger micro-batch than one that does not fit is not tried."""
    held = None
    for group in groups:
        for execution in group:
            work = work_on(question, choice, execution)
            held = held or holdings_of(work)
            memory = forecast_memory(work, held=held)
            yield work, memory
            if memory.peak_high_bytes > memory.capacity_bytes:
                break
