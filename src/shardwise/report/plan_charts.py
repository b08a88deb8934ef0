"""The plan's two pictures: the memory of every candidate stacked by part, and the timeline of one step."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.report.charts import LABEL_WIDTH
from shardwise.report.markup import Markup, element, join
from shardwise.report.svg import Scale, drawing, nice_ticks
from shardwise.spec.plan import PARTS, Candidate, RankMemory
from shardwise.spec.timeline import Lane, Span, Stream, Timeline
from shardwise.units import GIB, format_bytes, format_seconds

BAR_HEIGHT, ROW_HEIGHT = 16.0, 27.0
LANE_HEIGHT, LINK_HEIGHT, LANE_GAP = 18.0, 8.0, 12.0
MOST_LANES = 16
#: A candidate that needs more than this share above the capacity is cut there: its figure says by how much.
FARTHEST = 1.6
#: Spans of one kind closer than this many units are drawn as one: nobody sees the gap.
_GAP = 0.6


def worst_rank(candidate: Candidate) -> RankMemory:
    """The rank that needs most."""
    return max(candidate.memory.ranks, key=lambda rank: rank.peak_bytes)


def memory_bars(candidates: Sequence[tuple[str, Candidate]], *, ident: str, width: int) -> Markup:
    """One bar for each (name, candidate), stacked by part, and the capacity as a line."""
    capacity = max(candidate.memory.capacity_bytes for _, candidate in candidates)
    longest = max(worst_rank(candidate).peak_bytes for _, candidate in candidates)
    left = 14 + LABEL_WIDTH * max(len(name) for name, _ in candidates)
    across = Scale(low=0, high=max(capacity, min(longest, FARTHEST * capacity)), start=left, end=width - 80)
    top = 26.0
    bottom = top + len(candidates) * ROW_HEIGHT
    rows = [
        _memory_row(name, candidate, y=top + index * ROW_HEIGHT, across=across)
        for index, (name, candidate) in enumerate(candidates)
    ]
    return drawing(
        _byte_grid(across, top=top, bottom=bottom),
        *rows,
        _capacity(capacity, x=across(capacity), top=top, bottom=bottom),
        ident=ident,
        title="Memory of one GPU, by candidate and part",
        description="; ".join(_described_memory(name, candidate) for name, candidate in candidates),
        width=width,
        height=round(bottom + 24),
    )


def _memory_row(name: str, candidate: Candidate, *, y: float, across: Scale) -> Markup:
    rank, drawn, start = worst_rank(candidate), list[Markup](), 0
    for part in PARTS:
        size = rank.parts.get(part, 0)
        left, right = (min(across(at), across.end) for at in (start, start + size))
        start += size
        if right > left:
            words = element("title", f"{name}: {part} {format_bytes(size)}")
            rect = element("rect", words, x=left, y=y, width=right - left, height=BAR_HEIGHT, class_=f"part {part}")
            drawn.append(rect)
    label = element("text", name, x=across.start - 8, y=y + 12, text_anchor="end", class_="tick total")
    total = format_bytes(start) + ("" if candidate.fits else " !")
    figure = element("text", total, x=min(across(start), across.end) + 6, y=y + 12, class_="tick total")
    return join([label, *drawn, figure])


def _byte_grid(across: Scale, *, top: float, bottom: float) -> Markup:
    ticks = nice_ticks(0, across.high / GIB, most=8)
    lines = [
        element("line", x1=across(tick * GIB), x2=across(tick * GIB), y1=top, y2=bottom, class_="grid")
        for tick in ticks
    ]
    labels = [
        element("text", f"{tick:g} GiB", x=across(tick * GIB), y=bottom + 16, text_anchor="middle", class_="tick")
        for tick in ticks
    ]
    return join([*lines, *labels])


def _capacity(capacity: int, *, x: float, top: float, bottom: float) -> Markup:
    line = element("line", x1=x, x2=x, y1=top - 8, y2=bottom, class_="capacity")
    words = f"capacity {format_bytes(capacity)}"
    return join([line, element("text", words, x=x, y=top - 12, text_anchor="end", class_="tick capacity-label")])


def _described_memory(name: str, candidate: Candidate) -> str:
    rank = worst_rank(candidate)
    parts = ", ".join(f"{part} {format_bytes(rank.parts[part])}" for part in PARTS if rank.parts.get(part))
    return f"{name} {format_bytes(rank.peak_bytes)}: {parts}"


def timeline_chart(timeline: Timeline, *, ident: str, width: int) -> Markup:
    """A lane for each GPU, or for GPUs that do the same: what it computes, and beside it what travels."""
    lanes = timeline.lanes[:MOST_LANES]
    names = [lane_name(lane) for lane in lanes]
    across = Scale(low=0, high=timeline.seconds, start=14 + LABEL_WIDTH * max(map(len, names)), end=width - 52)
    step = LANE_HEIGHT + LINK_HEIGHT + LANE_GAP
    bottom = 6 + len(lanes) * step
    rows = [_lane(timeline, lane, y=6 + index * step, across=across) for index, lane in enumerate(lanes)]
    return drawing(
        _second_grid(across, bottom=bottom),
        *rows,
        ident=ident,
        title=f"One step of {timeline.strategy}: who computes, who talks, who waits",
        description="; ".join(_described_lane(timeline, lane) for lane in lanes),
        width=width,
        height=round(bottom + 22),
    )


def lane_name(lane: Lane) -> str:
    """`GPU 0`, or `GPU 0-3`."""
    first, last = lane.ranks[0], lane.ranks[-1]
    return f"GPU {first}" if first == last else f"GPU {first}-{last}"


def _lane(timeline: Timeline, lane: Lane, *, y: float, across: Scale) -> Markup:
    label = element("text", lane_name(lane), x=across.start - 8, y=y + 13, text_anchor="end", class_="tick total")
    idle = element("rect", x=across.start, y=y, width=across.end - across.start, height=LANE_HEIGHT, class_="idle")
    share = f"{100 * timeline.computing_share(lane):.0f} %"
    figure = element("text", share, x=across.end + 6, y=y + 13, class_="tick total")
    own = _stretches(timeline, lane, "compute", y=y, height=LANE_HEIGHT, across=across)
    beside = _stretches(timeline, lane, "links", y=y + LANE_HEIGHT + 1, height=LINK_HEIGHT, across=across)
    return join([label, idle, own, beside, figure])


def _stretches(timeline: Timeline, lane: Lane, stream: Stream, *, y: float, height: float, across: Scale) -> Markup:
    drawn: list[Markup] = []
    for kind, name, start, end in merged(timeline.of(lane, stream), within=_GAP / (across.end - across.start)):
        left, right = across(start), across(end)
        words = element("title", f"{name}: {format_seconds(end - start)}")
        look = f"span {kind}"
        drawn.append(element("rect", words, x=left, y=y, width=max(right - left, 0.3), height=height, class_=look))
    return join(drawn)


def merged(spans: Sequence[Span], *, within: float) -> list[tuple[str, str, float, float]]:
    """(kind, name, start, end) of the spans, those of one kind that follow each other closely as one.

    Args:
        spans: of one stream, in order.
        within: the largest gap and the shortest span that are still seen, as a share of the whole.
    """
    found: list[tuple[str, str, float, float]] = []
    least = within * max((span.end for span in spans), default=0.0)
    for span in spans:
        if found:
            kind, name, start, end = found[-1]
            small = min(end - start, span.end - span.start) < 6 * least
            if kind == span.kind and span.start - end <= least and small:
                found[-1] = (kind, f"{name.partition(' to ')[0]} to {span.name}", start, span.end)
                continue
        found.append((span.kind, span.name, span.start, span.end))
    return found


def _second_grid(across: Scale, *, bottom: float) -> Markup:
    ticks = nice_ticks(0, across.high, most=8)
    lines = [element("line", x1=across(tick), x2=across(tick), y1=0, y2=bottom, class_="grid") for tick in ticks]
    labels = [
        element("text", format_seconds(tick), x=across(tick), y=bottom + 14, text_anchor="middle", class_="tick")
        for tick in ticks
    ]
    return join([*lines, *labels])


def _described_lane(timeline: Timeline, lane: Lane) -> str:
    return f"{lane_name(lane)} computes {100 * timeline.computing_share(lane):.0f} % of the time"
