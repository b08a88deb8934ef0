"""One step of the toy model in frames: who computes, sends and waits, and what each GPU holds meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from shardwise.api.learn.toy import GPUS, LAYERS, ROWS, Held, Piece, pieces, timeline_of
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.timeline import COMPUTING, Kind, Timeline, TimelineSpan

#: What takes a smaller share of the step has no frame of its own.
_SHORT = 0.004
_LAYER = re.compile(r"(?:layer|stage) (\d)")


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One GPU in a frame. `computes`, `sends`: what, in words, or None; `waits`: it does not compute."""

    rank: int
    kind: Kind | None
    computes: str | None
    sends: str | None
    sent: Kind | None
    holds: dict[Held, frozenset[Piece]]

    @property
    def waits(self) -> bool:
        """Whether it computes nothing."""
        return self.kind not in COMPUTING


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A stretch of the step in which nobody begins or ends anything; in seconds of the step, and a share of it."""

    start: float
    end: float
    share: float
    seats: tuple[Seat, ...]


@cache
def frames(name: str) -> tuple[Frame, ...]:
    """The frames of one step under a strategy of `STRATEGIES`."""
    layout, drawn = Layout.from_strategy(name, world_size=GPUS), timeline_of(name)
    least = _SHORT * drawn.seconds
    spans = tuple(span for span in drawn.spans if span.end - span.start > least)
    times: list[float] = []
    for at in sorted({0.0, drawn.seconds, *(at for span in spans for at in (span.start, span.end))}):
        if not times or at - times[-1] > least:
            times.append(at)
    times[-1] = drawn.seconds
    return tuple(
        Frame(
            start=start,
            end=end,
            share=start / drawn.seconds,
            seats=tuple(_seat(layout, drawn, rank, at=(start + end) / 2) for rank in range(GPUS)),
        )
        for start, end in pairwise(times)
    )


def _seat(layout: Layout, drawn: Timeline, rank: int, *, at: float) -> Seat:
    lane = next(lane for lane in drawn.lanes if rank in lane.ranks)
    computed, linked = drawn.of(lane, "compute"), drawn.of(lane, "links")
    now, sent = _during(computed, at), _during(linked, at)
    if now is not None and now.kind != "wait" and now.kind not in COMPUTING:  # what travels in the way of computing
        now, sent = None, now
    done = [span for span in (*computed, *linked) if span.end <= at]
    coming = [span for span in computed if span.end > at]
    return Seat(
        rank=rank,
        kind=now and now.kind,
        computes=now and in_letters(now.name),
        sends=sent and in_letters(sent.name),
        sent=sent and sent.kind,
        holds={
            "weights": frozenset(pieces(layout, rank, what="weights") | set(_gathered(layout, done, coming))),
            "gradients": frozenset(_gradients(layout, rank, done)),
            "optimizer": frozenset(pieces(layout, rank, what="optimizer")),
        },
    )


def _during(spans: tuple[TimelineSpan, ...], at: float) -> TimelineSpan | None:
    return next((span for span in spans if span.start <= at < span.end), None)


def in_letters(name: str) -> str:
    """`forward of layer 0` as `forward of a`; the toy's stages are its layers."""
    words = _LAYER.sub(lambda found: LAYERS[int(found[1])], name)
    return re.sub(r"^(send )?(forward|backward): (\w), micro-batch (\d+)$", r"\1\2 of \3, micro-batch \4", words)


def _layer(span: TimelineSpan) -> int | None:
    found = _LAYER.search(span.name)
    return int(found[1]) if found else None


def _whole(layer: int) -> Iterator[Piece]:
    return ((layer, row) for row in range(ROWS))


def _gathered(layout: Layout, done: list[TimelineSpan], coming: list[TimelineSpan]) -> Iterator[Piece]:
    """Layers that have been gathered and are still to be used: by a forward, or by the backward if they are kept."""
    for span in done:
        layer = _layer(span)
        if span.kind != "gather" or layer is None:
            continue
        kept = "again" in span.name or not layout.reshard_after_forward
        user = "backward" if kept else "forward"
        if any(one.kind == user and _layer(one) == layer for one in coming):
            yield from _whole(layer)


def _gradients(layout: Layout, rank: int, done: list[TimelineSpan]) -> Iterator[Piece]:
    """Those of layers whose backward has run, whole until they are reduced; none once the optimizer has used them."""
    if any(span.kind == "optimizer" for span in done):
        return
    own = pieces(layout, rank, what="gradients")
    reduced = {_layer(span) for span in done if span.kind == "reduce"}
    for layer in {layer for span in done if span.kind == "backward" and (layer := _layer(span)) is not None}:
        is_whole = layout.weight_shards > 1 and layer not in reduced
        yield from _whole(layer) if is_whole else (piece for piece in own if piece[0] == layer)
