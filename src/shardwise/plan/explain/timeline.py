"""The timeline of one step: blocks and messages on one rank, or passes of pipeline stages."""

from dataclasses import replace

from shardwise.plan.costs.piece import RankTime
from shardwise.plan.costs.pipeline import send_seconds
from shardwise.plan.time import StageTime, endings_of, host_seconds, pieces_of, stages_of, step_of, walk
from shardwise.plan.work import Work, work_of_plan
from shardwise.spec.layout.axes import Coordinates, Layout
from shardwise.spec.layout.schedule import ActionKind
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.plan.timeline import COMPUTING, Kind, Lane, Stream, Timeline, TimelineSpan

#: Micro-batches laid out where there are more: without a pipeline they repeat unchanged.
DRAWN = 2
#: In a pipeline, as many rounds of one micro-batch per rank, and no more than can be told apart.
DRAWN_ROUNDS, MOST_DRAWN = 2, 16
#: A wait that is a smaller share of a stretch of work than this is rounding.
_UNSEEN = 1e-9
#: Where collectives run: beside computation, or in turn with it.
_STREAM: tuple[Stream, Stream] = ("links", "compute")
_LATE: dict[str, tuple[Stream, Kind]] = {
    "reduce gradients": ("links", "reduce"),
    "add tied gradients": ("links", "reduce"),
    "optimizer": ("compute", "optimizer"),
    "gather weights": ("links", "gather"),
}


class Streams:
    """The streams of some ranks. Work runs in the order in which it is added, as in CUDA."""

    def __init__(self) -> None:
        self.spans: list[TimelineSpan] = []
        self._free: dict[tuple[int, Stream], float] = {}

    def add(
        self, stream: Stream, seconds: float, *, kind: Kind, name: str, rank: int = 0, not_before: float = 0.0
    ) -> float:
        """Puts work at the end of a stream; returns when it ends."""
        start = max(self._free.get((rank, stream), 0.0), not_before)
        self._free[rank, stream] = end = start + seconds
        self.spans.append(TimelineSpan(rank=rank, stream=stream, kind=kind, name=name, start=start, end=end))
        return end

    @property
    def end(self) -> float:
        """When the last work ends."""
        return max(self._free.values(), default=0.0)


def timeline_of_plan(plan: Plan) -> Timeline | None:
    """The timeline of a plan's chosen candidate; None if nothing fits. Raises as `work_of_plan`."""
    return None if plan.best is None else timeline_of(work_of_plan(plan, plan.best.execution))


def timeline_of(work: Work, *, micro_batches: int | None = None) -> Timeline:
    """Lays out one optimizer step with at most so many micro-batches; None: all distinct ones."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    enough = min(MOST_DRAWN, max(DRAWN, DRAWN_ROUNDS * layout.pp)) if layout.schedule != "sequential" else DRAWN
    # Micro-batches are alike: some rounds show the pattern, and a page stays small.
    drawn = min(micros, enough if micro_batches is None else micro_batches)
    shown = replace(work, execution=replace(work.execution, gradient_accumulation_steps=drawn))
    streams, ranks = Streams(), _lane_ranks(layout)
    ends = _pipeline(shown, streams) if layout.pp > 1 else _whole_model(shown, streams)
    for rank, begin, ending in zip(ranks, ends, endings_of(work), strict=True):
        end = begin
        for name, piece in ending.pieces:
            stream, kind = _LATE[name]
            computing = piece.computing if stream == "compute" else piece.seconds
            _lay(streams, piece.seconds, computing, stream=stream, name=name, kind=kind, rank=rank, not_before=end)
            end += piece.seconds
    end, host = streams.end, host_seconds(work)
    for rank in ranks if host else ():
        streams.add("compute", host, name="waiting between steps", rank=rank, kind="wait", not_before=end)
    return Timeline(
        strategy=layout.strategy,
        seconds=streams.end,
        micro_batches=micros,
        drawn_micro_batches=drawn,
        lanes=_lanes(work, streams, left=micros - drawn),
        spans=tuple(streams.spans),
    )


def _lane_ranks(layout: Layout) -> list[int]:
    return [layout.rank(Coordinates(pp=pp)) for pp in range(layout.pp)]


def _lanes(work: Work, streams: Streams, *, left: int) -> tuple[Lane, ...]:
    """A lane for each pipeline coordinate; `left` micro-batches are not laid out."""
    layout, seconds = work.execution.layout, step_of(work).seconds
    stages = stages_of(work, pieces_of(work))
    once = [stage.forward_pass.computing + stage.backward_pass.computing for stage in stages]
    lanes: list[Lane] = []
    for pp, first in enumerate(_lane_ranks(layout)):
        drawn = sum(span.end - span.start for span in streams.spans if span.rank == first and span.kind in COMPUTING)
        computing = drawn + left * sum(once[index] for index in layout.stages_of(pp))
        ranks = range(first, first + layout.ranks_per_stage)
        lanes.append(Lane(ranks=tuple(ranks), computing=min(1.0, computing / seconds)))
    return tuple(lanes)


def _pipeline(work: Work, streams: Streams) -> tuple[float, ...]:
    """Forwards and backwards of stages on all ranks, and the messages between them."""
    layout = work.execution.layout
    ranks, send, stages = _lane_ranks(layout), send_seconds(work), stages_of(work, pieces_of(work))

    def seen(pp: int, kind: ActionKind, stage: int, micro: int, start: float, end: float) -> None:
        ahead = kind == "forward"
        name = f"{kind.replace('_', ' of ')}: stage {stage}, micro-batch {micro}"
        whole = stages[stage].forward_pass if ahead else stages[stage].backward_pass
        computing = (end - start) * whole.computing / whole.seconds
        drawn: Kind = "forward" if ahead else "backward"
        _lay(streams, end - start, computing, name=name, kind=drawn, rank=ranks[pp], not_before=start)
        sends = stage < layout.num_stages - 1 if ahead else stage > 0 and kind != "backward_weight"
        if sends:
            streams.add("links", send, name=f"send {name}", rank=ranks[pp], kind="send", not_before=end)

    micros = work.execution.gradient_accumulation_steps
    seconds = tuple(stage.actions for stage in stages)
    return walk(layout.schedule, stages=seconds, num_micro_batches=micros, send=send, seen=seen)


def _whole_model(work: Work, streams: Streams) -> tuple[float, ...]:
    """Every block of every micro-batch on one rank; the last may reduce gradients on the way."""
    pieces, micros = pieces_of(work), work.execution.gradient_accumulation_steps
    end = 0.0
    for micro in range(micros):
        (stage,) = stages_of(work, pieces, last_micro_batch=micro == micros - 1)
        end = lay_backward(streams, stage, begin=lay_forward(streams, stage, begin=end))
    return (end,)


def lay_forward(streams: Streams, stage: StageTime, *, begin: float) -> float:
    """Lays out a forward; returns its end. Block i's gather waits until block i - 2 is freed."""
    message, ends, link = stage.messages, [begin, begin], _STREAM[stage.in_turn]
    if message.outer_gather:
        streams.add(link, message.outer_gather, kind="gather", name="gather embedding", not_before=begin)
    for layer in range(stage.blocks):
        ready = ends[-1]
        if message.gather:
            name = f"gather layer {layer}"
            ready = max(ready, streams.add(link, message.gather, kind="gather", name=name, not_before=ends[-2]))
        elif layer == 0:
            ready += message.outer_gather
        ends.append(_block(streams, stage.forward, "forward", f"forward of layer {layer}", ready))
    if message.head_gather:
        ends.append(streams.add(link, message.head_gather, kind="gather", name="gather head", not_before=ends[-2]))
    return max(ends)


def lay_backward(streams: Streams, stage: StageTime, *, begin: float) -> float:
    """Lays out loss and backward; returns the end of the last reduction. A gather begins with the
    backward of the block behind its own, and precedes that one's reduction."""
    message, last, link = stage.messages, stage.blocks - 1, _STREAM[stage.in_turn]
    ready, done = begin, begin
    if message.again:
        ready = streams.add(link, message.again, kind="gather", name=f"gather layer {last} again", not_before=begin)
    if stage.loss.seconds:
        done = _block(streams, stage.loss, "loss", "head and loss", begin)
    if message.head_reduce:
        streams.add(link, message.head_reduce, kind="reduce", name="reduce head", not_before=done)
    for layer in range(last, -1, -1):
        start = max(ready, done)
        if message.again and layer:
            name = f"gather layer {layer - 1} again"
            ready = streams.add(link, message.again, kind="gather", name=name, not_before=start)
        if message.outer_again and not layer:
            name = "gather embedding again"
            streams.add(link, message.outer_again, kind="gather", name=name, not_before=start)
        done = _block(streams, stage.backward, "backward", f"backward of layer {layer}", start)
        if message.reduce:
            streams.add(link, message.reduce, kind="reduce", name=f"reduce layer {layer}", not_before=done)
    if message.outer_reduce:
        streams.add(link, message.outer_reduce, kind="reduce", name="reduce embedding", not_before=done)
    return max(done, streams.end)


def _block(streams: Streams, piece: RankTime, kind: Kind, name: str, not_before: float) -> float:
    """A block's computation, then what tensor and context parallelism exchange inside it."""
    end = _lay(streams, piece.seconds - piece.talking, piece.computing, name=name, kind=kind, not_before=not_before)
    if piece.talking:
        return streams.add("compute", piece.talking, name=f"exchange in {name}", kind="exchange")
    return end


def _lay(
    streams: Streams,
    seconds: float,
    computing: float,
    *,
    name: str,
    kind: Kind,
    not_before: float,
    stream: Stream = "compute",
    rank: int = 0,
) -> float:
    """Seconds of which some are computed; the others, anywhere between, are drawn last."""
    waiting = seconds - computing
    if waiting <= _UNSEEN * seconds:
        return streams.add(stream, seconds, name=name, rank=rank, kind=kind, not_before=not_before)
    streams.add(stream, computing, name=name, rank=rank, kind=kind, not_before=not_before)
    return streams.add(stream, waiting, name=f"waiting in {name}", rank=rank, kind="wait")
