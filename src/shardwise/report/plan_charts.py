"""The plan's picture of memory: every candidate's, stacked by part, and the capacity"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.report.charts import LABEL_WIDTH
from shardwise.report.markup import Markup, element, join
from shardwise.report.svg import Scale, drawing, nice_ticks
from shardwise.spec.plan import PARTS, Candidate, RankMemory
from shardwise.units import GIB, format_bytes

BAR_HEIGHT, ROW_HEIGHT = 16.0, 27.0
#: A candidate that needs more than this share above the capacity is cut there: its figure says by how much.
FARTHEST = 1.6


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
