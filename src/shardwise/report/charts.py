"""The report's two charts: metrics over steps, and memory of each rank, forecast beside measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.report.compare import common_parts
from shardwise.report.markup import Markup, element, join
from shardwise.report.nouns import COMMON_PARTS, OUTSIDE_PART, MemoryReport, RankReport
from shardwise.report.svg import Scale, drawing, nice_ticks
from shardwise.units import GIB, KIB, MIB, TIB, format_bytes

LABEL_WIDTH = 6.6  # of one 11-unit character; only margins depend on it
MAX_BARS = 8

#: A capacity farther out than this many peaks would squeeze the bars into nothing.
FARTHEST_CAPACITY = 4


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line, or dots where `dots` is set.

    Attributes:
        look: class of the style sheet: `raw`, `smooth`, `second`.
    """

    name: str
    points: Sequence[tuple[int, float]]
    look: str
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A level to compare with, such as the forecast."""

    name: str
    value: float


def line_chart(
    series: Sequence[Series],
    *,
    ident: str,
    title: str,
    width: int,
    height: int,
    write: Callable[[float], str],
    reference: Reference | None = None,
) -> Markup:
    """Series over optimizer steps; `write` puts a value into words for its axis.

    A series without points is left out; with none left the chart says so.
    """
    drawn = [one for one in series if one.points]
    if not drawn:
        return empty_chart(ident=ident, title=title, width=width, height=height)
    values = [value for one in drawn for _, value in one.points] + ([reference.value] if reference else [])
    steps = [step for one in drawn for step, _ in one.points]
    ticks = nice_ticks(min(values), max(values), most=5)
    left = 14 + LABEL_WIDTH * max(len(write(tick)) for tick in ticks)
    across = Scale(low=min(steps), high=max(steps), start=left, end=width - 12)
    up = Scale(low=min(*values, *ticks), high=max(*values, *ticks), start=height - 34, end=12)
    return drawing(
        _level_lines(ticks, up=up, across=across, write=write),
        _step_axis(across=across, baseline=up.start, most=max(4, width // 110)),
        *([_reference_line(reference, up=up, across=across)] if reference else []),
        *(_marks(one, across=across, up=up, write=write) for one in drawn),
        ident=ident,
        title=title,
        description="; ".join(_described(one, write) for one in drawn),
        width=width,
        height=height,
    )


def empty_chart(*, ident: str, title: str, width: int, height: int) -> Markup:
    """A frame that says that nothing was recorded."""
    words = element("text", "not measured", x=width / 2, y=height / 2, text_anchor="middle", class_="tick")
    return drawing(words, ident=ident, title=title, description="nothing was recorded", width=width, height=height)


def _described(series: Series, write: Callable[[float], str]) -> str:
    (first_step, first), (last_step, last) = series.points[0], series.points[-1]
    if len(series.points) == 1:
        return f"{series.name}: {write(first)} at step {first_step}"
    return f"{series.name}: {write(first)} at step {first_step}, {write(last)} at step {last_step}"


def _level_lines(ticks: Sequence[float], *, up: Scale, across: Scale, write: Callable[[float], str]) -> Markup:
    def level(tick: float) -> Markup:
        y = up(tick)
        label = element("text", write(tick), x=across.start - 8, y=y + 4, text_anchor="end", class_="tick")
        return join([element("line", x1=across.start, x2=across.end, y1=y, y2=y, class_="grid"), label])

    return join([level(tick) for tick in ticks])


def _step_axis(*, across: Scale, baseline: float, most: int) -> Markup:
    whole_ticks = [tick for tick in nice_ticks(across.low, across.high, most=most) if float(tick).is_integer()]
    labels = [
        element("text", f"{tick:,.0f}", x=across(tick), y=baseline + 16, text_anchor="middle", class_="tick")
        for tick in whole_ticks
    ]
    name = element("text", "step", x=across.end, y=baseline + 30, text_anchor="end", class_="tick")
    axis = element("line", x1=across.start, x2=across.end, y1=baseline, y2=baseline, class_="axis")
    return join([axis, *labels, name])


def _reference_line(reference: Reference, *, up: Scale, across: Scale) -> Markup:
    y = up(reference.value)
    return element("line", x1=across.start, x2=across.end, y1=y, y2=y, class_="reference")


def _marks(series: Series, *, across: Scale, up: Scale, write: Callable[[float], str]) -> Markup:
    """The line; a dot for each point where there is one point only, or few that are wanted one by one."""
    if not series.dots and len(series.points) > 1:
        path = "L".join(f"{across(step):.1f} {up(value):.1f}" for step, value in series.points)
        return element("path", d=f"M{path}", class_=f"line {series.look}")
    return join(
        [
            element(
                "circle",
                element("title", f"{series.name} {write(value)} at step {step}"),
                cx=across(step),
                cy=up(value),
                r=4.0,
                class_=f"dot {series.look}",
            )
            for step, value in series.points
        ]
    )


def shown_ranks(memory: MemoryReport) -> list[RankReport]:
    """The ranks with the highest peaks, in order of rank."""

    def height(rank: RankReport) -> tuple[bool, int, int]:
        worst = rank.rank == memory.worst_rank
        return (worst, rank.measured_peak_bytes or rank.forecast_peak_bytes or 0, -rank.rank)

    return sorted(sorted(memory.ranks, key=height, reverse=True)[:MAX_BARS], key=lambda rank: rank.rank)


def memory_chart(memory: MemoryReport, *, ident: str, width: int) -> Markup:
    """Two bars per rank, forecast above measured, each stacked by part, and the capacity as a line."""
    title = "Memory per rank, forecast and measured"
    ranks = shown_ranks(memory)
    longest = max((sum(size for _, size in bar) for rank in ranks for _, bar in _bars(rank)), default=0)
    if not longest:
        return empty_chart(ident=ident, title=title, width=width, height=120)
    capacity = memory.capacity_bytes if capacity_in_sight(memory) else None
    across = Scale(low=0, high=max(longest, capacity or 0), start=66, end=width - 72)
    top = 24.0
    height = round(top + len(ranks) * RANK_HEIGHT + 26)
    rows = [_rank_rows(rank, y=top + index * RANK_HEIGHT, across=across) for index, rank in enumerate(ranks)]
    return drawing(
        _byte_axis(across=across, top=top, bottom=height - 26.0, most=max(4, width // 130)),
        *rows,
        *([_capacity_line(capacity, across=across, top=top, bottom=height - 26.0)] if capacity else []),
        ident=ident,
        title=title,
        description="; ".join(_described_rank(rank) for rank in ranks),
        width=width,
        height=height,
    )


BAR_HEIGHT = 13.0
RANK_HEIGHT = 58.0


def capacity_in_sight(memory: MemoryReport) -> bool:
    """The capacity is known and near enough to be drawn to scale with the bars."""
    peaks = [rank.measured_peak_bytes or rank.forecast_peak_bytes or 0 for rank in memory.ranks]
    return bool(memory.capacity_bytes) and (memory.capacity_bytes or 0) <= FARTHEST_CAPACITY * max(peaks, default=0)


def _bars(rank: RankReport) -> list[tuple[str, list[tuple[str, int]]]]:
    """(side, [(part, bytes)]) of a rank; a measured peak without parts is one plain bar."""
    bars: list[tuple[str, list[tuple[str, int]]]] = []
    if rank.forecast_parts:
        parts = {**common_parts(rank.forecast_parts), OUTSIDE_PART: rank.forecast_parts.get(OUTSIDE_PART, 0)}
        bars.append(("forecast", list(parts.items())))
    if rank.measured_parts and len(rank.measured_parts) == len(COMMON_PARTS):
        bars.append(("measured", list(rank.measured_parts.items())))
    elif rank.measured_peak_bytes:
        bars.append(("measured", [("peak", rank.measured_peak_bytes)]))
    return bars


def _rank_rows(rank: RankReport, *, y: float, across: Scale) -> Markup:
    name = element("text", f"rank {rank.rank}", x=0, y=y + 12, class_="rank")
    bars = [
        _bar(side, parts, y=y + 18 + index * (BAR_HEIGHT + 4), across=across)
        for index, (side, parts) in enumerate(_bars(rank))
    ]
    return join([name, *bars])


def _bar(side: str, parts: list[tuple[str, int]], *, y: float, across: Scale) -> Markup:
    drawn: list[Markup] = []
    start = 0
    for part, size in parts:
        left, right = across(start), across(start + size)
        words = element("title", f"{side}: {part} {format_bytes(size)}")
        if size:
            drawn.append(
                element("rect", words, x=left, y=y, width=right - left, height=BAR_HEIGHT, class_=f"part {part}")
            )
        start += size
    label = element("text", side, x=across.start - 8, y=y + 10.5, text_anchor="end", class_="tick")
    total = element("text", format_bytes(start), x=across(start) + 6, y=y + 10.5, class_="tick total")
    return join([label, *drawn, total])


def _byte_axis(*, across: Scale, top: float, bottom: float, most: int) -> Markup:
    unit, name = next((unit, name) for unit, name in BYTE_UNITS if across.high >= unit or unit == 1)
    ticks = nice_ticks(0, across.high / unit, most=most)
    lines = [
        element("line", x1=across(tick * unit), x2=across(tick * unit), y1=top, y2=bottom, class_="grid")
        for tick in ticks
    ]
    labels = [
        element(
            "text",
            f"{tick:g} {name}",
            x=across(tick * unit),
            y=bottom + 16,
            text_anchor="middle",
            class_="tick",
        )
        for tick in ticks
    ]
    return join([*lines, *labels])


BYTE_UNITS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


def _capacity_line(capacity: int, *, across: Scale, top: float, bottom: float) -> Markup:
    x = across(capacity)
    line = element("line", x1=x, x2=x, y1=top - 8, y2=bottom, class_="capacity")
    words = f"capacity {format_bytes(capacity)}"
    return join([line, element("text", words, x=x, y=top - 12, text_anchor="end", class_="tick capacity-label")])


def _described_rank(rank: RankReport) -> str:
    sides = [f"{side} {format_bytes(sum(size for _, size in parts))}" for side, parts in _bars(rank)]
    return f"rank {rank.rank}: {', '.join(sides) or 'not measured'}"
