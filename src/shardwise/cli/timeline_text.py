"""The timeline of one step for the terminal: a line for each GPU, a letter for each interval."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from shardwise.spec.plan.timeline import KIND_WORDS, Kind, Lane, Timeline, TimelineSpan
from shardwise.units import format_seconds

#: How each kind of work is drawn: (letter, colour).
LETTERS: dict[Kind, tuple[str, str]] = {
    "forward": ("F", "blue"),
    "loss": ("L", "cyan"),
    "backward": ("B", "magenta"),
    "optimizer": ("O", "yellow"),
    "wait": ("-", "bright_black"),
    "exchange": ("x", "red"),
    "gather": ("g", "green"),
    "reduce": ("r", "red"),
    "send": ("s", "cyan"),
}
WAITS = "."
MOST_LANES = 16


def print_timeline(timeline: Timeline, console: Console) -> None:
    """The whole timeline."""
    console.print()
    console.print(heading(timeline), style="bold")
    for line in timeline_lines(timeline, width=console.width):
        console.print(line, no_wrap=True, overflow="crop")
    console.print(legend(timeline), style="dim")


def heading(timeline: Timeline) -> str:
    """The strategy, and how much of the step is drawn."""
    whole = timeline.drawn_micro_batches == timeline.micro_batches
    micros = "" if whole else f", {timeline.drawn_micro_batches} of its {timeline.micro_batches} micro-batches"
    return f"one step of {timeline.strategy}{micros}: {format_seconds(timeline.seconds)} from left to right"


def timeline_lines(timeline: Timeline, *, width: int) -> list[Text]:
    """A line for each lane, and a second one where communication overlaps its computation."""
    lanes = timeline.lanes[:MOST_LANES]
    left = max(len("beside"), *(len(lane.name) for lane in lanes)) + 1
    columns = max(20, width - left - 6)
    lines: list[Text] = []
    for lane in lanes:
        computing = timeline.of(lane, "compute")
        # What the GPU computes, and in the gaps the communication that it waits for.
        spans = (*computing, *_beside(timeline.of(lane, "links"), computing))
        row = _letters(spans, seconds=timeline.seconds, columns=columns)
        lines.append(Text.assemble(lane.name.ljust(left), row, f" {100 * lane.computing:3.0f} %"))
        if _overlaps(timeline, lane):
            sent = _letters(timeline.of(lane, "links"), seconds=timeline.seconds, columns=columns)
            lines.append(Text.assemble("beside".rjust(left - 1), " ", sent))
    if len(timeline.lanes) > MOST_LANES:
        lines.append(Text(f"... and {len(timeline.lanes) - MOST_LANES} more"))
    return lines


def _overlaps(timeline: Timeline, lane: Lane) -> bool:
    return any(span.kind in ("gather", "reduce") for span in timeline.of(lane, "links"))


def _beside(links: tuple[TimelineSpan, ...], computing: tuple[TimelineSpan, ...]) -> Iterator[TimelineSpan]:
    busy = sorted(computing, key=lambda span: span.start)
    begins, ends = [span.start for span in busy], [span.end for span in busy]
    for span in links:
        now = span.start
        for at in range(bisect_right(ends, now), bisect_left(begins, span.end)):
            if now < begins[at]:
                yield replace(span, start=now, end=begins[at])
            now = max(now, ends[at])
        if now < span.end:
            yield replace(span, start=now)


def _letters(spans: tuple[TimelineSpan, ...], *, seconds: float, columns: int) -> Text:
    """The kind that fills most of each column; a dot where nothing fills a third of it."""
    filled: list[dict[Kind, float]] = [{} for _ in range(columns)]
    for span in spans:
        first, last = (min(columns - 1, int(at / seconds * columns)) for at in (span.start, span.end))
        for column in range(first, last + 1):
            begin, end = column * seconds / columns, (column + 1) * seconds / columns
            inside = min(end, span.end) - max(begin, span.start)
            filled[column][span.kind] = filled[column].get(span.kind, 0.0) + max(0.0, inside)
    third, text = seconds / columns / 3, Text()
    for here in filled:
        is_used = sum(here.values()) > third
        letter, colour = LETTERS[max(here, key=here.__getitem__)] if is_used else (WAITS, "bright_black")
        text.append(letter, style=colour)
    return text


def legend(timeline: Timeline) -> str:
    """The letters that occur."""
    kinds = {span.kind for span in timeline.spans}
    words = [f"{LETTERS[kind][0]} {word}" for kind, word in KIND_WORDS.items() if kind in kinds]
    waits = f"{WAITS} waits for others"
    if any(_overlaps(timeline, lane) for lane in timeline.lanes):
        waits += ", beside: nothing is sent"
    return "  ".join([*words, waits, "%: share of the whole step in which it computes"])
