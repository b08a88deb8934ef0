"""Whether compiled blocks earn, over a run, the seconds that compiling them takes; and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.memory.work import Work
from shardwise.plan.search.executions import why_eager
from shardwise.plan.search.layouts import Choice
from shardwise.plan.search.search import Search
from shardwise.plan.time.forecast import num_steps
from shardwise.spec.layout.execution import Execution
from shardwise.units import format_seconds

#: Inductor's seconds for forward and backward of one graph: runs of an 8B model with adapters, which have two graphs
#: (the first block's input has no gradient), began 15 and 17 s later where they were compiled (docs/how/measured.md).
SECONDS_PER_GRAPH = 8.0


def compile_seconds(search: Search, work: Work) -> float:
    """Seconds that a run's first steps take longer: each kind of block is compiled once, and once more for any length
    where rows differ in length."""
    frozen = not work.inventory.trained(work.inventory.embedding_name)
    lengths = 1 if search.question.mean_length == search.question.length else 2
    return (len(work.model.kinds) + frozen) * lengths * SECONDS_PER_GRAPH


def seconds_saved(search: Search, execution: Execution) -> float:
    """Seconds of a step that compiled blocks are forecast to save."""
    eager = replace(execution, compile=False)
    return search.forecasts.seconds(eager) - search.forecasts.seconds(replace(execution, compile=True))


def too_short(search: Search, work: Work) -> str | None:
    """Why a run is not compiled that `compile: auto` would compile: it ends before that has paid; None where it pays,
    or where the length of the run is not known."""
    steps = num_steps(work, num_rows=search.question.num_rows)
    if search.question.job.train.compile != "auto" or not work.execution.compile or steps is None:
        return None
    cost, saved = compile_seconds(search, work), steps * seconds_saved(search, work.execution)
    if saved >= cost:
        return None
    return f"that takes about {format_seconds(cost)}, and would save {format_seconds(max(0.0, saved))} in {steps} steps"


def why_compiled(search: Search, work: Work) -> str | None:
    """Whether `compile: auto` compiles the blocks, and why; None where a job states it."""
    question, execution = search.question, work.execution
    if question.too_short is not None:
        return f"blocks are not compiled: {question.too_short}"
    if question.job.train.compile != "auto":
        return None
    choice = Choice(strategy=execution.layout.strategy, layout=execution.layout, cluster=question.cluster)
    if not execution.compile:
        return f"blocks are not compiled: {why_eager(question.job, question.model, choice)}"
    if too_short(search, work) is not None:
        return "blocks are compiled, because nothing fits otherwise"
    cost, saved = compile_seconds(search, work), seconds_saved(search, execution)
    earned = f"earned after {max(1, round(cost / saved)):,} of them" if saved > 0 else "which wait for messages alone"
    return (
        f"blocks are compiled: about {format_seconds(cost)} in the first steps, {format_seconds(max(0.0, saved))} less "
        f"in each step, {earned}"
    )
