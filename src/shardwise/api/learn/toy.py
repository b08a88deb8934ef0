"""A toy model of as many layers as GPUs, usually three, with one weight each: who holds what, and
who works when.

Who holds what is asked of the layout code that planner and trainer share (`spec/layout`,
`spec/model`). Who works when is the planner's timeline of one step (`shardwise plan --timeline`).
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

from shardwise.api.plans.planning import plan, timeline
from shardwise.catalog.prices import read_table
from shardwise.spec.layout.axes import Layout, rows_of_shard
from shardwise.spec.model.stages import balanced
from shardwise.spec.plan.timeline import COMPUTING, Kind, Lane, Timeline, TimelineSpan

LAYERS = ("a", "b", "c")
ROWS = GPUS = 3
#: GPUs that the toy can have; so many are its layers, and the rows of a weight.
SIZES = range(2, 9)


def config_of(gpus: int) -> dict[str, Any]:
    """A block for each GPU, wide enough to compute, with heads that can be dealt among them."""
    heads = gpus * round(24 / gpus)
    return {
        "model_type": "llama",
        "hidden_size": 128 * heads,
        "intermediate_size": 384 * heads,
        "num_hidden_layers": gpus,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 128 * heads,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }


@dataclass(frozen=True, kw_only=True)
class ToyStrategy:
    """One way to train the toy on three GPUs, and what a reader should see in it."""

    name: str
    title: str
    text: str


_TEXTS = read_table("strategies", package="shardwise.api.learn").items()
STRATEGIES = tuple(ToyStrategy(name=name, **texts) for name, texts in _TEXTS)

#: What a GPU holds of the model, in the order shown; a piece is a row of a layer's weight.
Held = Literal["weights", "gradients", "optimizer"]
HOLDINGS: tuple[Held, ...] = ("weights", "gradients", "optimizer")
Piece = tuple[int, int]


def pieces(layout: Layout, rank: int, *, what: Held) -> set[Piece]:
    """(layer, row) of what a rank holds between two steps, of as many of each as GPUs."""
    at = layout.coordinates(rank)
    size = layout.world_size
    stages = balanced(size, num_stages=layout.num_stages)
    layers = [layer for stage in layout.stages_of(at.pp) for layer in stages[stage]]
    sharded = layout.dp_shard if what == "optimizer" else layout.weight_shards
    degree, index = (layout.tp, at.tp) if layout.tp > 1 else (sharded, at.dp_shard)
    first = sum(rows_of_shard(size, degree=degree, index=before) for before in range(index))
    held = range(first, first + rows_of_shard(size, degree=degree, index=index)) if degree > 1 else range(size)
    return {(layer, row) for layer in layers for row in held}


@cache
def timeline_of(name: str, gpus: int = GPUS) -> Timeline:
    """The planner's timeline of a step of the toy. Raises ValueError: it does not fit."""
    each = 8 if gpus <= 4 else 4  # sequences of a GPU
    micro = {"mp": each * gpus, "tp": each * gpus, "pp": 4}.get(name, each)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(config_of(gpus)), encoding="utf-8")
        settings = {"model": config, "hardware": f"{gpus}x RTX-6000-Ada", "layout": name, "data.max_length": 2048}
        settings |= {"train.global_batch_size": each * gpus, "train.micro_batch_size": micro}
        settings |= {"train.gradient_checkpointing": "none", "train.offload": "none", "data.num_rows": each * gpus}
        drawn = timeline(plan(overrides=[f"{key}={value}" for key, value in settings.items()]))
    if drawn is None:
        raise ValueError(f"{name}: the toy does not fit, so that there is no timeline")
    return drawn


#: Kinds of GPU that frames of a plan show.
MOST_LANES = 8
#: What takes a smaller share of the step has no frame of its own.
_SHORT = 0.004
_LAYER = re.compile(r"(?:layer|stage) (\d)")


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One GPU in a frame, or several that do the same. `computes`, `sends`: what, in words, or
    None; `waits`: it does not compute; `holds`: pieces of the toy, of no other model."""

    rank: int
    name: str
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
    """A stretch of the step, in seconds, in which nobody begins or ends anything."""

    start: float
    end: float
    share: float
    seats: tuple[Seat, ...]


@cache
def frames(name: str, gpus: int = GPUS) -> tuple[Frame, ...]:
    """The frames of one step of the toy under a strategy of `STRATEGIES`."""
    layout, drawn = Layout.from_strategy(name, world_size=gpus), timeline_of(name, gpus)
    lanes = [next(lane for lane in drawn.lanes if rank in lane.ranks) for rank in range(gpus)]

    def seats(at: float) -> Iterator[Seat]:
        for rank, lane in enumerate(lanes):
            seat, done, coming = _seat(drawn, lane, at=at)
            weights = pieces(layout, rank, what="weights") | set(_gathered(layout, done, coming))
            holds: dict[Held, frozenset[Piece]] = {
                "weights": frozenset(weights),
                "gradients": frozenset(_gradients(layout, rank, done)),
                "optimizer": frozenset(pieces(layout, rank, what="optimizer")),
            }
            computes, sends = (text and in_letters(text) for text in (seat.computes, seat.sends))
            yield replace(seat, rank=rank, name=f"GPU {rank}", computes=computes, sends=sends, holds=holds)

    return tuple(_frames(drawn, seats))


def frames_of(drawn: Timeline) -> tuple[Frame, ...]:
    """The frames of a plan's step: a seat for GPUs that do the same, which hold nothing."""
    lanes = drawn.lanes[:MOST_LANES]
    return tuple(_frames(drawn, lambda at: (_seat(drawn, lane, at=at)[0] for lane in lanes)))


def _frames(drawn: Timeline, seats: Callable[[float], Iterable[Seat]]) -> Iterator[Frame]:
    least = _SHORT * drawn.seconds
    spans = tuple(span for span in drawn.spans if span.end - span.start > least)
    times: list[float] = []
    for at in sorted({0.0, drawn.seconds, *(at for span in spans for at in (span.start, span.end))}):
        if not times or at - times[-1] > least:
            times.append(at)
    times[-1] = drawn.seconds
    for start, end in pairwise(times):
        yield Frame(start=start, end=end, share=start / drawn.seconds, seats=tuple(seats((start + end) / 2)))


_Spans = list[TimelineSpan]


def _seat(drawn: Timeline, lane: Lane, *, at: float) -> tuple[Seat, _Spans, _Spans]:
    computed, linked = drawn.of(lane, "compute"), drawn.of(lane, "links")
    now, sent = _during(computed, at), _during(linked, at)
    if now is not None and now.kind != "wait" and now.kind not in COMPUTING:  # what travels in the way of computing
        now, sent = None, now
    seat = Seat(
        rank=lane.rank,
        name=lane.name,
        kind=now and now.kind,
        computes=now and now.name,
        sends=sent and sent.name,
        sent=sent and sent.kind,
        holds={},
    )
    return seat, [one for one in (*computed, *linked) if one.end <= at], [one for one in computed if one.end > at]


def _during(spans: tuple[TimelineSpan, ...], at: float) -> TimelineSpan | None:
    return next((span for span in spans if span.start <= at < span.end), None)


def in_letters(name: str) -> str:
    """`forward of layer 0` as `forward of a`; the toy's stages are its layers."""
    words = _LAYER.sub(lambda found: ascii_lowercase[int(found[1])], name)
    return re.sub(r"^(send )?(forward|backward): (\w), micro-batch (\d+)$", r"\1\2 of \3, micro-batch \4", words)


def _layer(span: TimelineSpan) -> int | None:
    found = _LAYER.search(span.name)
    return int(found[1]) if found else None


def _gathered(layout: Layout, done: list[TimelineSpan], coming: list[TimelineSpan]) -> Iterator[Piece]:
    """Layers that have been gathered and are still to be used."""
    for span in done:
        layer = _layer(span)
        if span.kind != "gather" or layer is None:
            continue
        kept = "again" in span.name or not layout.reshard_after_forward
        user = "backward" if kept else "forward"
        if any(one.kind == user and _layer(one) == layer for one in coming):
            yield from ((layer, row) for row in range(layout.world_size))


def _gradients(layout: Layout, rank: int, done: list[TimelineSpan]) -> Iterator[Piece]:
    """Those of layers whose backward has run, whole until reduced; none once they were used."""
    if any(span.kind == "optimizer" for span in done):
        return
    own = pieces(layout, rank, what="gradients")
    reduced = {_layer(span) for span in done if span.kind == "reduce"}
    for layer in {layer for span in done if span.kind == "backward" and (layer := _layer(span)) is not None}:
        is_whole = layout.weight_shards > 1 and layer not in reduced
        rows = range(layout.world_size)
        yield from ((layer, row) for row in rows if is_whole or (layer, row) in own)
