"""The charts' data: stacked bars, a step's timeline, curves; positions in percent of the width."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.report.contents import Curve
from shardwise.spec.data_facts import RowLengths
from shardwise.spec.plan.timeline import KIND_WORDS, Lane, Stream, Timeline, TimelineSpan
from shardwise.units import GIB, KIB, MIB, TIB, format_bytes, format_seconds

MOST_LANES = 16
#: Spans of one kind that are closer than this share of the step are drawn as one.
MERGED_WITHIN = 0.0008
STREAMS: tuple[Stream, ...] = ("compute", "links")
BYTE_UNITS = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A coloured part of a bar, of one style sheet class; positions in percent of chart width."""

    look: str
    start: float
    width: float
    tip: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a chart. `below`: segments of a thinner track; `broken`: longer than the chart."""

    label: str
    total: str
    segments: tuple[Segment, ...]
    below: tuple[Segment, ...] = ()
    under: str = ""
    strong: bool = False
    new: bool = False
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """The same values as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Bars on one scale; legend: (class, words), ticks: (percent, label), `mark`: in percent."""

    title: str
    bars: tuple[Bar, ...]
    legend: tuple[tuple[str, str], ...]
    ticks: tuple[tuple[float, str], ...] = ()
    mark: float | None = None
    table: Table | None = None
    notes: tuple[str, ...] = ()


_MOST_TICKS = 6


def ticks_of(high: float, write: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    """Round values from 0 to `high`, 1, 2 or 5 times a power of ten apart; positions in percent."""
    if not high > 0:
        return ()
    power = 10.0 ** math.floor(math.log10(high / _MOST_TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if high / (factor * power) <= _MOST_TICKS)
    return tuple((100 * index * step / high, write(index * step)) for index in range(int(high / step + 1e-9) + 1))


@dataclass(frozen=True, kw_only=True)
class MemoryBar:
    """Memory of one rank, part by part."""

    label: str
    parts: Mapping[str, int]
    under: str = ""
    suffix: str = ""
    strong: bool = False
    new: bool = False

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())


def memory_chart(stacks: Sequence[MemoryBar], *, title: str, capacity: int | None, most: float = math.inf) -> Chart:
    """A bar for each stack; a line for one GPU's capacity; bars end at `most` capacities."""
    longest = max((stack.total for stack in stacks), default=0)
    high = max(capacity or 0, min(longest, most * capacity if capacity else longest)) or 1
    unit, unit_name = next((unit, name) for unit, name in BYTE_UNITS if high >= unit or unit == 1)
    parts = dict.fromkeys(part for stack in stacks for part in stack.parts)
    used = [part for part in parts if any(stack.parts.get(part) for stack in stacks)]
    named = [" ".join(filter(None, (stack.label, stack.under))) for stack in stacks]
    sizes = [[*(stack.parts.get(part, 0) for part in used), stack.total] for stack in stacks]
    rows = [(name, *map(format_bytes, row)) for name, row in zip(named, sizes, strict=True)]
    legend = [(f"part {part}", part) for part in used]
    return Chart(
        title=title,
        bars=tuple(_memory_bar(stack, high=high) for stack in stacks),
        legend=(*legend, *([("capacity", f"capacity {format_bytes(capacity)}")] if capacity else [])),
        ticks=ticks_of(high / unit, lambda value: f"{value:g} {unit_name}"),
        mark=None if not capacity else 100 * capacity / high,
        table=Table(columns=("", *used, "total"), rows=tuple(rows)),
    )


def _memory_bar(stack: MemoryBar, *, high: float) -> Bar:
    segments: list[Segment] = []
    before, total = 0, format_bytes(stack.total)
    for part, size in stack.parts.items():
        start, end = (min(100.0, 100 * at / high) for at in (before, before + size))
        before += size
        if end > start:
            tip = f"{part} {format_bytes(size)}, {100 * size / stack.total:.0f} % of {total}"
            segments.append(Segment(look=f"part {part}", start=start, width=end - start, tip=tip))
    return Bar(
        label=stack.label,
        under=stack.under,
        total=total + stack.suffix,
        segments=tuple(segments),
        strong=stack.strong,
        new=stack.new,
        broken=stack.total > 1.001 * high,
    )


def lengths_chart(lengths: RowLengths) -> Chart:
    """A bar for each bin of lengths; rows longer than `max_length` have a look of their own."""
    most = max(rows for _, _, rows in lengths.bins)
    usual, too_long = "part main", "part communication"
    bars: list[Bar] = []
    for (label, rows, share), (low, _, number) in zip(lengths.labelled(), lengths.bins, strict=True):
        look = too_long if low > lengths.max_length else usual
        segment = Segment(look=look, start=0.0, width=100 * number / most, tip=f"{rows} rows of {label} tokens")
        bars.append(Bar(label=label, total=f"{rows} rows, {share} up to here", segments=(segment,)))
    legend = [(usual, "rows"), (too_long, f"longer than max_length, {lengths.max_length:,}")]
    shown = legend if lengths.num_over else legend[:1]
    return Chart(title="Rows by tokens, before any is cut or dropped", bars=tuple(bars), legend=tuple(shown))


def timeline_chart(timeline: Timeline) -> Chart:
    """A bar for each GPU, or for GPUs that do the same: what it computes; below it what is sent."""
    high, kinds = timeline.seconds, {span.kind for span in timeline.spans}
    words = {kind: word for kind, word in KIND_WORDS.items() if kind in kinds}
    bars: list[Bar] = []
    rows: list[tuple[str, ...]] = []
    for lane in timeline.lanes[:MOST_LANES]:
        share, upper, lower = (f"{100 * lane.computing:.0f} %", *(_spans(timeline, lane, of) for of in STREAMS))
        bars.append(Bar(label=lane.name, total=share, segments=upper, below=lower))
        rows.append((lane.name, f"{share} of the step", *(_seconds(timeline, lane, kind) for kind in words)))
    return Chart(
        title=f"One step of {timeline.strategy}: who computes, communicates and waits",
        bars=tuple(bars),
        legend=(*((f"span {kind}", word) for kind, word in words.items()), ("idle", "waiting for others")),
        ticks=ticks_of(high, "{:g} s".format) if high >= 1 else ticks_of(1000 * high, "{:g} ms".format),
        table=Table(columns=("", "computes", *words.values()), rows=tuple(rows)),
        notes=_timeline_notes(timeline),
    )


def _timeline_notes(timeline: Timeline) -> tuple[str, ...]:
    drawn, all_of_them = timeline.drawn_micro_batches, timeline.micro_batches
    notes = ["The whole step" if drawn == all_of_them else f"{drawn} of the step's {all_of_them} micro-batches"]
    if len(timeline.lanes) > MOST_LANES:
        notes.append(f"{MOST_LANES} of {len(timeline.lanes)} kinds of GPU")
    return (
        f"{' and '.join(notes)} as forecast. Upper track: computation; where it is empty, the GPU waits. "
        "Lower track: communication at the same time. At the right: share of the whole step in which the GPU computes.",
    )


def _seconds(timeline: Timeline, lane: Lane, kind: str) -> str:
    spans = [span for span in timeline.spans if span.rank == lane.rank and span.kind == kind]
    return format_seconds(sum(span.end - span.start for span in spans))


def _spans(timeline: Timeline, lane: Lane, stream: Stream) -> tuple[Segment, ...]:
    percent = 100 / timeline.seconds
    return tuple(
        Segment(
            look=f"span {kind}",
            start=start * percent,
            width=max((end - start) * percent, 0.04),
            tip=f"{lane.name}: {name}, {format_seconds(end - start)} from {format_seconds(start)}",
        )
        for kind, name, start, end in merged(timeline.of(lane, stream))
    )


def merged(spans: Sequence[TimelineSpan], *, within: float = MERGED_WITHIN) -> list[tuple[str, str, float, float]]:
    """(kind, name, start, end) of a stream; short ones of a kind merge over gaps of `within`."""
    found: list[tuple[str, str, float, float]] = []
    gap = within * max((span.end for span in spans), default=0.0)
    for span in spans:
        if found:
            kind, name, start, end = found[-1]
            short = min(end - start, span.end - span.start) < 6 * gap
            if kind == span.kind and span.start - end <= gap and short:
                found[-1] = (kind, f"{name.partition(' to ')[0]} to {span.name}", start, span.end)
                continue
        found.append((span.kind, span.name, span.start, span.end))
    return found


def curve_data(
    lines: Sequence[tuple[str, str, Curve]], *, title: str, unit: str, level: tuple[str, float] | None = None
) -> dict[str, Any]:
    """What uPlot draws: one x axis for all `lines`, which are (name, class of the style sheet,
    curve), with gaps where a line has no value. `unit`: how page.js writes values: `plain`,
    `seconds` or `power`; `level`: (name, value) of a horizontal line, such as the forecast."""
    drawn = [(name, look, dict(curve.points)) for name, look, curve in lines if curve.points]
    steps = sorted({step for _, _, points in drawn for step in points})
    if level is not None and steps:
        drawn.append((level[0], "reference", dict.fromkeys(steps, level[1])))
    rounded = [
        (name, look, {step: float(f"{value:.6g}") for step, value in points.items()}) for name, look, points in drawn
    ]
    series = [{"name": name, "look": look, "values": [*map(points.get, steps)]} for name, look, points in rounded]
    return {"title": title, "unit": unit, "steps": steps, "series": series}
