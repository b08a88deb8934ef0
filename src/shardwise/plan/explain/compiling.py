"""Whether compiled blocks earn, over a run, the seconds that compiling them takes; and the sentence that says so."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.search import Choice, Search, why_eager
from shardwise.plan.time import num_steps
from shardwise.plan.work import Work
from shardwise.units import format_seconds

#: Inductor's seconds for forward and backward of one graph: runs of an 8B model with adapters, which have two graphs
#: (the first block's input has no gradient), began 15 and 17 s later where they were compiled (docs/how/measured.md).
SECONDS_PER_GRAPH = 8.0


def _cost_and_saved(search: Search, work: Work) -> tuple[float, float]:
    """Seconds that the first steps take longer, for each kind of block, and once more where rows differ in length; and
    those that each step takes less."""
    frozen = not work.inventory.trained(work.inventory.embedding_name)
    lengths = 1 if search.question.mean_length == search.question.length else 2
    eager = search.forecasts.seconds(replace(work.execution, compile=False))
    cost = (len(work.model.kinds) + frozen) * lengths * SECONDS_PER_GRAPH
    return cost, eager - search.forecasts.seconds(work.execution)


def too_short(search: Search, work: Work) -> str | None:
    """Why `compile: auto` does not compile a run: it ends before that pays; None where it pays, or may."""
    steps = num_steps(work.job.train, num_rows=search.question.num_rows)
    if search.question.job.train.compile != "auto" or not work.execution.compile or steps is None:
        return None
    cost, saved = _cost_and_saved(search, work)
    if steps * saved >= cost:
        return None
    all_saved = format_seconds(max(0.0, steps * saved))
    return f"that takes about {format_seconds(cost)}, and would save {all_saved} in {steps} steps"


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
    cost, saved = _cost_and_saved(search, work)
    earned = (
        f"which pays off after {max(1, round(cost / saved)):,} steps" if saved > 0 else "which wait for messages alone"
    )
    return (
        f"blocks are compiled: about {format_seconds(cost)} in the first steps, {format_seconds(max(0.0, saved))} less "
        f"in each step, {earned}"
    )
