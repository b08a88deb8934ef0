"""A plan as a page: the choice and why, memory and time of every candidate, a step's timeline; and
compare.html: one job under several layouts, as bars and as a table."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.report.contents import Side
from shardwise.report.pages.charts import Bar, Chart, MemoryBar, Segment, lengths_chart, memory_chart, timeline_chart
from shardwise.report.pages.render import render
from shardwise.report.versus import COLUMNS, Contender, Versus
from shardwise.spec.data_facts import DataFacts
from shardwise.spec.plan.forecast import PARTS, Candidate, Plan
from shardwise.spec.plan.timeline import Timeline

#: A bar ends at this many capacities; its figure says how much is needed.
LONGEST_BAR = 1.6
#: Candidates that are shown; the rest is folded.
MOST = 5


def plan_html(plan: Plan, timeline: Timeline | None) -> str:
    """The whole page."""
    return render("plan.html", titled=True, **plan_context(plan, timeline))


def plan_context(plan: Plan, timeline: Timeline | None) -> dict[str, Any]:
    """What `plan_body.html` reads, beside `titled`: with the verdict, which some pages have."""
    candidates = list(plan.candidates)
    memory = memory_of(plan, candidates)
    return {
        "most": MOST,
        "more_memory": None if memory is None or not memory.bars[MOST:] else replace(memory, bars=memory.bars[MOST:]),
        "plan": plan,
        "model": str(plan.job.get("model", "model")),
        "hardware": str(plan.hardware.get("name", "this machine")),
        "candidates": candidates,
        "memory": None if memory is None else replace(memory, bars=memory.bars[:MOST]),
        "timeline": None if timeline is None else timeline_chart(timeline),
        "strategy": "" if timeline is None else timeline.strategy,
        **rows_of(plan.data),
        "examples": [] if plan.data is None else [(one.where, one.text, False) for one in plan.data.preview],
        "rejected": list(dict.fromkeys((one.strategy, one.reason) for one in plan.rejected)),
    }


def rows_of(data: DataFacts | None) -> dict[str, Any]:
    """What pages say of rows: `rows.html` reads it."""
    lengths = None if data is None else data.lengths
    return {"rows": data, "rows_chart": None if lengths is None else lengths_chart(lengths)}


def memory_of(plan: Plan, candidates: list[Candidate]) -> Chart | None:
    """A bar for each candidate: the rank that needs most, part by part."""
    if not candidates:
        return None
    stacks = [
        MemoryBar(
            label=candidate.execution.layout.strategy,
            under=_sizes(candidate),
            parts={part: candidate.worst_rank.parts.get(part, 0) for part in PARTS},
            suffix="" if candidate.fits else " !",
            strong=candidate is plan.best,
            new=True,
        )
        for candidate in candidates
    ]
    capacity = max(candidate.memory.capacity_bytes for candidate in candidates)
    return memory_chart(stacks, title="Memory of one GPU, by candidate and part", capacity=capacity, most=LONGEST_BAR)


def _sizes(candidate: Candidate) -> str:
    """What tells candidates of one strategy apart: `4x2 full, offload optimizer`."""
    execution = candidate.execution
    sizes = f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}"
    recompute = "" if execution.gradient_checkpointing == "none" else f" {execution.gradient_checkpointing}"
    return f"{sizes}{recompute}" + ("" if execution.offload == "none" else f", offload {execution.offload}")


CHARTS = ("step time", "GPU utilisation", "peak memory")

SIDES: tuple[tuple[Side, str], ...] = (("measured", "part main"), ("forecast", "part context"))


def versus_html(found: Versus, timelines: Mapping[str, Timeline] | None = None) -> str:
    """The whole page; `timelines` are forecast steps to draw, by layout."""
    return render("compare.html", **versus_context(found, timelines, heading="One job, several layouts"))


def versus_context(
    found: Versus, timelines: Mapping[str, Timeline] | None = None, *, heading: str, first: str = "Layout"
) -> dict[str, Any]:
    """What `compare_body.html` reads; `first`: what the first column is called."""
    return {
        "heading": heading,
        "first": first,
        "found": found,
        "columns": COLUMNS,
        "charts": [(name, bars_of(found, name)) for name in CHARTS],
        "timelines": [(layout, timeline_chart(timeline)) for layout, timeline in (timelines or {}).items()],
    }


def bars_of(found: Versus, name: str) -> Chart | None:
    """Two bars for each layout, measured and forecast, on one scale; None if nothing is known."""
    figures = [one.figure(name) for one in found.contenders]
    known = [value for figure in figures for value in (figure.measured, figure.forecast) if value is not None]
    if not known:
        return None
    high = 1.0 if figures[0].unit == "share" else max(known) or 1.0
    bars = [bar for one in found.contenders for bar in _bars(one, name, high=high)]
    return Chart(title=name, bars=tuple(bars), legend=tuple((look, side) for side, look in SIDES))


def _bars(one: Contender, name: str, *, high: float) -> list[Bar]:
    figure = one.figure(name)
    bars: list[Bar] = []
    for side, look in SIDES:
        if (value := getattr(figure, side)) is not None:
            total = figure.written(side)
            tip = f"{one.layout}: {name} {total} {side}"
            segment = Segment(look=look, start=0.0, width=100 * value / high, tip=tip)
            bars.append(Bar(label=one.layout, under=side, total=total, segments=(segment,), new=not bars))
    return bars
