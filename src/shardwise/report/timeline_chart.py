"""The timeline of one step as a picture: who computes, who talks and who waits"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.report.charts import LABEL_WIDTH
from shardwise.report.markup import Markup, element, join
from shardwise.report.page import legend_of
from shardwise.report.svg import Scale, drawing, nice_ticks
from shardwise.spec.timeline import KIND_WORDS, Lane, Span, Stream, Timeline
from shardwise.units import format_seconds

LANE_HEIGHT, LINK_HEIGHT, LANE_GAP = 18.0, 8.0, 12.0
MOST_LANES = 16
#: Spans of one kind closer than this many units are drawn as one: nobody sees the gap.
_GAP = 0.6


def timeline_panel(heading: str, timeline: Timeline, *, ident: str, width: int) -> Markup:
    """A section of a page: the picture, what its colours mean, and how much of the step is drawn."""
    kinds = {span.kind for span in timeline.spans}
    legend = legend_of([(f"part span {kind}", words) for kind, words in KIND_WORDS.items() if kind in kinds])
    drawn = timeline_chart(timeline, ident=ident, width=width)
    note = element("p", _drawn_sentence(timeline), class_="note")
    return element("section", element("h2", heading), legend, drawn, note, class_="panel")


def _drawn_sentence(timeline: Timeline) -> str:
    part = "The whole step is drawn"
    if timeline.drawn_micro_batches < timeline.micro_batches:
        part = f"{timeline.drawn_micro_batches} of the step's {timeline.micro_batches} micro-batches are drawn"
    lanes = "" if len(timeline.lanes) <= MOST_LANES else f", and {MOST_LANES} of {len(timeline.lanes)} kinds of GPU"
    stages = " In a pipeline, what a stage waits for inside a pass is drawn behind what it computes."
    return (
        f"{part}{lanes}. Thick: what a GPU computes, and for which share of the whole step; where it is empty, it "
        f"waits. Thin, below: what travels meanwhile.{stages if len(timeline.lanes) > 1 else ''}"
    )


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
        description="; ".join(_described_lane(lane) for lane in lanes),
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
    share = f"{100 * lane.computing:.0f} %"
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


def _described_lane(lane: Lane) -> str:
    return f"{lane_name(lane)} computes {100 * lane.computing:.0f} % of the step"
