"""Whether compiled blocks earn their seconds, and cp from which length of rows, in words"""

from dataclasses import replace
from itertools import takewhile
from math import ceil, inf

from shardwise.plan.costs.context import gathered_bytes, key_seconds
from shardwise.plan.costs.piece import device_of
from shardwise.plan.costs.products import attention_seconds
from shardwise.plan.explain.comparison import percent
from shardwise.plan.search import Choice, Forecasts, Search, changed, considered, sized, why_eager
from shardwise.plan.time import num_steps
from shardwise.plan.work import Work
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.forecast import Sentence
from shardwise.spec.support.splits import as_trained
from shardwise.spec.support.trained import refusal
from shardwise.units import format_gib, format_seconds

#: Of attention's seconds, what is little beside them.
_LITTLE = 0.05


def worth_parts(search: Search, work: Work) -> str | None:
    """The sentence; None where rows are never that long, or sequences are not cut in parts."""
    layout, length = work.execution.layout, search.question.length
    if work.cluster.gpu.kind == "cpu" or layout.ep > 1:
        return None
    if layout.cp > 1:
        halves = (length >> halved for halved in range(length.bit_length()))
        whole = _whole(layout), _sharded(_whole(layout))
        most = next((one for one in halves if min(_seconds(search, by, one) for by in whole) < inf), 0)
        upto = f"; whole they do up to {most:,}" if most else ""
        return None if most == length else f"rows of {length:,} tokens fit in parts (cp) alone{upto}"
    layouts = {layout, _sharded(layout)}
    parts = {cut for one in layouts if (cut := _in_parts(one)) is not None}
    powers = (1 << power for power in range((length - 1).bit_length(), 64) if parts)
    for longer in takewhile(work.model.max_position_embeddings.__ge__, powers):
        whole = min(_seconds(search, one, longer) for one in layouts)
        cut = min(_seconds(search, one, longer, below=whole) for one in parts)
        if cut < whole:
            how = "which no longer fit whole" if whole == inf else f"where it is {percent(whole / cut - 1)} faster"
            where = f"from rows of {longer:,} tokens on, {how}"
            return Sentence(f"at the same tp and pp, context parallelism (cp: 2) is worth it {where}", "elsewhere")
    return None


def keys_and_values(work: Work) -> str | None:
    """What sharing rows costs: a gather grows with their length, attention with its square."""
    if work.execution.layout.cp == 1 or work.profile is not None:
        return None
    gathered = key_seconds(work, work.tokens)
    attention = attention_seconds(work, device_of(work))[0]
    least = ceil(work.job.data.max_length * (gathered / attention) / _LITTLE)
    little = f"from rows of {least:,} tokens on that is less than {_LITTLE:.0%} of attention's own time"
    return (
        f"cp: a forward of a block gathers {format_gib(round(gathered_bytes(work)))} of keys and values of whole rows, "
        f"some heads at a time, and waits {format_seconds(gathered)} for them beside {format_seconds(attention)} of "
        f"attention; {little}"
    )


def _sharded(layout: Layout) -> Layout:
    """A layout that holds least of the weights between steps."""
    return replace(layout, dp_replicate=1, dp_shard=layout.data_world_size, zero_stage=3, reshard_after_forward=True)


def _in_parts(layout: Layout) -> Layout | None:
    """A layout in which two ranks that saw different rows share each row; None if none does."""
    axis = _data_axis(layout)
    degree = getattr(layout, axis)
    return None if degree % 2 else replace(layout, cp=2, **{axis: degree // 2})


def _whole(layout: Layout) -> Layout:
    """A layout in which ranks that share rows see different ones."""
    axis = _data_axis(layout)
    return replace(layout, cp=1, **{axis: getattr(layout, axis) * layout.cp})


def _data_axis(layout: Layout) -> str:
    return "dp_shard" if layout.shard_degree > 1 else "dp_replicate"


def _seconds(search: Search, layout: Layout, length: int, *, below: float = inf) -> float:
    """Of a step of rows so long, one at a time; infinite if nothing fits, or below `below`."""
    asked = search.question
    job = changed(asked.job, "data", max_length=length)
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=asked.cluster)
    refused = refusal(method=job.method, layout=layout, model=as_trained(job, asked.model))
    left = [] if refused else considered(job, asked.model, choice)[0]
    if not left:
        return inf
    forecasts = Forecasts(replace(asked, job=job, length=length, mean_length=length, document=None))
    every = (sized(base, job, 1) for base in left)
    fastest_first = sorted((one for one in every if forecasts.seconds(one) < below), key=forecasts.seconds)
    return next((forecasts.seconds(one) for one in fastest_first if forecasts.fits(one)), inf)


#: Inductor's seconds for forward and backward of one graph: runs of an 8B model with adapters,
#: which have two graphs (the first block's input has no gradient), began 15 and 17 s later where
#: they were compiled (docs/how/measured.md).
SECONDS_PER_GRAPH = 8.0


def _cost_and_saved(search: Search, work: Work) -> tuple[float, float]:
    """Seconds that the first steps take longer, for each kind of block, and once more where rows
    differ in length; and those that each step takes less."""
    frozen = not work.inventory.trained(work.inventory.embedding_name)
    lengths = 1 if search.question.mean_length == search.question.length else 2
    eager = search.forecasts.seconds(replace(work.execution, compile=False))
    cost = (len(work.model.kinds) + frozen) * lengths * SECONDS_PER_GRAPH
    return cost, eager - search.forecasts.seconds(work.execution)


def too_short(search: Search, work: Work) -> str | None:
    """Why `compile: auto` does not compile a run too short to pay for it; None otherwise."""
    steps = num_steps(work.job.train, num_rows=search.question.num_rows)
    if search.question.job.train.compile != "auto" or not work.execution.compile or steps is None:
        return None
    cost, saved = _cost_and_saved(search, work)
    if steps * saved >= cost:
        return None
    all_saved = format_seconds(max(0.0, steps * saved))
    return f"that takes about {format_seconds(cost)}, and would save {all_saved} in {steps} step{'s' * (steps > 1)}"


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
        f"which pays off after {(after := max(1, round(cost / saved))):,} step{'s' * (after > 1)}"
        if saved > 0
        else "which wait for messages alone"
    )
    return (
        f"blocks are compiled: about {format_seconds(cost)} in the first steps, {format_seconds(max(0.0, saved))} less "
        f"in each step, {earned}"
    )
