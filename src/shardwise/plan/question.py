"""What is asked of the planner, and the memory of the executions that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.plan.choices import Choice, not_forecast
from shardwise.plan.inventory import Inventory
from shardwise.plan.memory import forecast_memory, holdings_of
from shardwise.plan.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job
from shardwise.spec.layout import Execution
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import MemoryForecast
from shardwise.spec.support import impossibilities, open_refusal


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, with what was derived from it once.

    Attributes:
        length: tokens of the longest sequence, padded, which memory must hold.
        mean_length: of the mean sequence, padded, which time is spent on.
    """

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    num_rows: int | None
    length: int
    mean_length: int


def work_on(question: Question, choice: Choice, execution: Execution) -> Work:
    """One execution of the question on a choice's part of the cluster."""
    return work_of(
        with_length(question.job, question.length),
        model=question.model,
        cluster=choice.cluster,
        execution=execution,
        inventory=question.inventory,
    )


def at_mean_length(question: Question, work: Work) -> Work:
    """The same work with sequences of the mean length."""
    if question.mean_length == question.length:
        return work
    return work_of(
        with_length(question.job, question.mean_length),
        model=work.model,
        cluster=work.cluster,
        execution=work.execution,
        inventory=work.inventory,
    )


def with_length(job: Job, length: int) -> Job:
    """The job as if no sequence could be longer."""
    if length == job.data.max_length:
        return job
    return job.model_copy(update={"data": job.data.model_copy(update={"max_length": length})})


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


def left_out(question: Question, choice: Choice, execution: Execution) -> list[str]:
    """Why an execution of a choice is not considered; empty where it is.

    What was asked for is forecast wherever that can be done; what is left open is chosen among what is trained.
    """
    reasons = impossibilities(question.job, execution, model=question.model)
    unknown = not_forecast(choice.layout)
    refused = None
    if question.job.layout == "auto":
        refused = open_refusal(method=question.job.method, layout=choice.layout, model=question.model)
    return [*reasons, *(reason for reason in (refused or unknown,) if reason)]
