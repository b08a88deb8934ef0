"""A plan's job as it is run: how long, and the memory of another execution, or for the rows that a
run saw, which may all be shorter than the longest of its data."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Literal

from shardwise.plan.costs.recompute import saved_on_host
from shardwise.plan.memory import forecast_memory, holdings_of, moments
from shardwise.plan.search import ask, work_on
from shardwise.plan.time import num_steps
from shardwise.plan.work import Alive, Holding, Work, work_of_plan
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.beside import RunForecast
from shardwise.spec.plan.forecast import Candidate, MemoryForecast, Plan, SeenMemory, cost_text
from shardwise.spec.run import EVALUATION, FORWARD_BACKWARD, LOADING, OPTIMIZER, SAVING
from shardwise.units import format_seconds

#: Phases of the instants that belong to no forward or backward.
_PHASES = {
    "loading": LOADING,
    "optimizer step": OPTIMIZER,
    "exchange of new weights": OPTIMIZER,
    "evaluation": EVALUATION,
    "saving": SAVING,
}


def memory_of(plan: Plan, execution: Execution) -> MemoryForecast:
    """Memory of an execution of a plan's job on its hardware, with rows as long as they may be."""
    return forecast_memory(work_of_plan(plan, execution))


def bytes_on_host(plan: Plan) -> int:
    """Bytes of the choice in the host's memory, offloaded or saved, for the rank with most."""
    if plan.best is None:
        return 0
    work = work_of_plan(plan, plan.best.execution)
    return max(one.on_host + saved_on_host(work, one) for one in holdings_of(work))


def forecast_seen(
    job: Job,
    *,
    model: ModelShape,
    cluster: Cluster,
    execution: Execution,
    first: int,
    later: int,
    document: float | None = None,
    trained: tuple[int, int] | None = None,
) -> SeenMemory:
    """The peaks of every rank, where no sequence of a step's first forward has more than `first`
    tokens, of its others than `later`: these alone lie beside added gradients. `trained`: positions
    of a first and of a later forward that are trained, at most; None: all."""

    def work(alike: Execution, *, is_first: bool) -> Work:
        length = first if is_first else later
        lengths = Lengths(longest=length, mean=length, document=document)
        done = work_on(ask(job, model=model, cluster=cluster, lengths=lengths), cluster, alike)
        return replace(done, trained=trained and trained[0 if is_first else 1])

    begun = work(replace(execution, gradient_accumulation_steps=1) if later else execution, is_first=True)
    phases: dict[int, dict[str, int]] = {}
    for holding in holdings_of(begun):
        most: dict[str, int] = {}
        seen = moments(begun, holding)
        if later:
            seen = chain(seen, _of_several(holding, work(execution, is_first=True), work(execution, is_first=False)))
        for instant, alive in seen:
            phase = _PHASES.get(instant, FORWARD_BACKWARD)
            most[phase] = max(round(sum(alive.values())), most.get(phase, 0))
        phases |= dict.fromkeys(holding.ranks(execution.layout), most)
    peaks = {rank: max(size for phase, size in most.items() if phase != LOADING) for rank, most in phases.items()}
    return SeenMemory(first=first, later=later, peaks=peaks, phases=phases)


def _of_several(holding: Holding, first: Work, later: Work) -> Iterator[tuple[str, Alive]]:
    """What is alive where several micro-batches are in flight, or gradients of the first exist."""
    backward = moments(first, holding, beside=later, gradients=False)
    yield from ((instant, alive) for instant, alive in backward if "forward" not in instant)
    yield from moments(later, holding, beside=first, gradients=False)
    yield from moments(later, holding, gradients=True)


_SAID = {"stated": "as data.num_rows says", "counted": "counted", "sampled": "counted, with the lengths of a sample"}


def run_of(
    job: Job, best: Candidate | None, *, num_rows: int | None, rows_from: Literal["stated", "counted", "sampled"] | None
) -> RunForecast:
    """The run of a job's chosen candidate. `rows_from`: where the number of rows comes from."""
    steps = num_steps(job.train, num_rows=num_rows)
    seconds = None if best is None else best.time.total_seconds
    usd = None if best is None else best.cost.usd
    sentence = "its rows are not known yet" if job.data.path else "say data.num_rows for time and cost"
    if steps is not None:
        rows = "" if num_rows is None else f" of {num_rows:,} rows ({_SAID[rows_from or 'stated']})"
        took = "" if seconds is None else f": {format_seconds(seconds)}"
        cost = "" if best is None or usd is None else f", {cost_text(best.cost)}"
        sentence = f"{steps:,} step{'s' if steps > 1 else ''}{rows}{took}{cost}"
    source = rows_from if num_rows is not None else None if steps is None else "max_steps"
    return RunForecast(
        rows_from=source, num_rows=num_rows, num_steps=steps, seconds=seconds, usd=usd, sentence=sentence
    )
