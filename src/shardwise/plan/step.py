"""One optimizer step of an execution: what every pipeline rank does, pass by pass, and what follows the last backward.

Ranks along the other axes are alike: one of each pipeline coordinate is the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwise.plan.inventory import Unit
from shardwise.plan.kernels import (
    CPU_OPTIMIZER_BYTES_PER_SECOND,
    HOST_SECONDS_PER_OPERATOR,
    HOST_SECONDS_PER_STEP,
    OFFLOAD_BYTES_PER_SECOND,
)
from shardwise.plan.links import group_of
from shardwise.plan.passes import (
    Frame,
    Messages,
    Stage,
    frame_of,
    gathered_once,
    mean,
    num_units,
    reduced_at_once,
    reduced_messages,
    sharded_messages,
)
from shardwise.plan.pieces import Piece, Pieces, device_of, launch_seconds, pieces_of
from shardwise.plan.pipeline import StageSeconds, rank_ends
from shardwise.plan.types import REDUCTION_BYTES
from shardwise.plan.work import Work
from shardwise.spec.layout import Layout
from shardwise.spec.stages import stage_blocks

#: The optimizer reads weight, gradient and states and writes weight and states; clipping reads gradients twice.
_OPTIMIZER_PASSES, _CLIPPING_PASSES = 2.0, 2.0
_OPTIMIZER_OPERATORS = 40
_NOTHING = Unit(tensors=())


class Step(NamedTuple):
    """A step as a whole, and what each pipeline rank does in it.

    Attributes:
        seconds: from the first forward to the next step's.
        computing: mean seconds, over ranks, in which a compute kernel runs.
        busy: mean seconds, over ranks, in which any kernel runs.
    """

    seconds: float
    computing: float
    busy: float


class Ending(NamedTuple):
    """What a rank does behind its last backward: (name, piece), in order."""

    pieces: tuple[tuple[str, Piece], ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(piece.seconds for _, piece in self.pieces)


def stages_of(work: Work, pieces: Pieces, *, last_micro_batch: bool = False) -> tuple[Stage, ...]:
    """Every stage of the pipeline, which is one where there is none; equal ones are one object."""
    return staged(frames_of(work, last_micro_batch=last_micro_batch), pieces)


def staged(frames: tuple[Frame, ...], pieces: Pieces) -> tuple[Stage, ...]:
    """The stages of some frames at work on a micro-batch of such pieces."""
    made = {frame: frame.stage(pieces) for frame in set(frames)}
    return tuple(made[frame] for frame in frames)


def frames_of(work: Work, *, last_micro_batch: bool = False) -> tuple[Frame, ...]:
    """What surrounds the blocks of every stage; it is the same for every size of micro-batch."""
    spans = _blocks(work)
    last = len(spans) - 1
    made: dict[tuple[int, bool, bool], Frame] = {}
    frames: list[Frame] = []
    for index, blocks in enumerate(spans):
        key = (blocks, index == 0, index == last)
        if key not in made:
            messages = _messages(work, _outer(work, index), blocks=blocks, reduces=last_micro_batch)
            made[key] = frame_of(work, messages, blocks=blocks, last=index == last, inside_hooks=work.sharded)
        frames.append(made[key])
    return tuple(frames)


def _blocks(work: Work) -> tuple[int, ...]:
    num_stages = work.execution.layout.num_stages
    if num_stages == 1:
        return (work.model.num_layers,)
    return tuple(len(span) for span in stage_blocks(work.model, num_stages=num_stages))


def _outer(work: Work, stage: int) -> Unit:
    """What a stage holds beside its blocks: the embedding in the first, norm and head in the last."""
    root, last = work.inventory.root, work.execution.layout.num_stages - 1
    if last == 0:
        return root
    if 0 < stage < last:
        return _NOTHING
    first = tuple(tensor for tensor in root.tensors if tensor.place == "front")
    if stage == 0:
        return Unit(tensors=first)
    # A tied head is a copy of the embedding there.
    tied = (tensor for tensor in first if work.model.tied and tensor.name == "embedding")
    return Unit(tensors=(*(tensor for tensor in root.tensors if tensor.place == "back"), *tied))


def _messages(work: Work, outer: Unit, *, blocks: int, reduces: bool) -> Messages:
    if work.sharded:
        sent = sharded_messages(work, outer=outer, blocks=blocks / num_units(work, blocks))
        return gathered_once(sent, work) if work.execution.postpones_reduction else sent
    return reduced_messages(work, outer=outer) if reduces and work.replicated else Messages()


def step_of(work: Work) -> Step:
    """The time of one optimizer step."""
    pieces, layout, micros = pieces_of(work), work.execution.layout, work.execution.gradient_accumulation_steps
    stages = stages_of(work, pieces)
    passes = {stage: (stage.forward_pass(), stage.backward_pass()) for stage in set(stages)}
    ran = [passes[stage] for stage in stages]
    final = passes[stages[0]][1]
    if work.replicated:
        ahead, back = passes[stages[0]]
        final = stages_of(work, pieces, last_micro_batch=True)[0].backward_pass()
        passes[stages[0]] = (ahead, _averaged(back, final, micros))
    seconds = tuple(_seconds(stage, ahead, back) for stage, (ahead, back) in zip(stages, ran, strict=True))
    ends = ends_of(layout, seconds, last_backward=final.seconds, num_micro_batches=micros, send=send_seconds(work))
    endings = endings_of(work)
    last = last_end(ends, [ending.seconds for ending in endings])
    pieces_run = [(micros, piece) for stage in stages for piece in passes[stage]]
    pieces_run += [(1, piece) for ending in endings for _, piece in ending.pieces]
    computing = sum(times * piece.computing for times, piece in pieces_run) / layout.pp
    busy = sum(times * piece.busy for times, piece in pieces_run) / layout.pp
    return Step(last + host_seconds(work), computing, busy)


def ends_of(
    layout: Layout,
    stages: tuple[StageSeconds, ...],
    *,
    last_backward: float,
    num_micro_batches: int,
    send: float,
) -> tuple[float, ...]:
    """When each pipeline rank has done its last backward, which without a pipeline may take another time."""
    if layout.pp > 1:
        return rank_ends(layout.schedule, stages=stages, num_micro_batches=num_micro_batches, send=send)
    ((ahead, back, _),) = stages
    return (num_micro_batches * ahead + (num_micro_batches - 1) * back + last_backward,)


def last_end(ends: Sequence[float], endings: Sequence[float]) -> float:
    """When the last rank has done what follows its last backward."""
    return max(end + ending for end, ending in zip(ends, endings, strict=True))


def _seconds(stage: Stage, ahead: Piece, back: Piece) -> StageSeconds:
    return StageSeconds(ahead.seconds, back.seconds, stage.blocks * stage.weights)


def _averaged(one: Piece, final: Piece, micros: int) -> Piece:
    """The mean of all micro-batches' backwards, of which the last is another."""
    return Piece(*(((micros - 1) * a + b) / micros for a, b in zip(one, final, strict=True)))


def stage_seconds(stages: tuple[Stage, ...]) -> tuple[StageSeconds, ...]:
    """Stages as the pipeline sees them."""
    made = {stage: _seconds(stage, stage.forward_pass(), stage.backward_pass()) for stage in set(stages)}
    return tuple(made[stage] for stage in stages)


def send_seconds(work: Work, *, micro_batch_size: int | None = None) -> float:
    """Seconds until a micro-batch's stream has reached the next stage; each tp rank sends all of it."""
    layout = work.execution.layout
    size = work.execution.micro_batch_size if micro_batch_size is None else micro_batch_size
    tokens = size * work.job.data.max_length / layout.cp
    return group_of(work.cluster, layout, "pp").message(tokens * work.model.hidden_size * work.types.compute)


def least_launched(work: Work) -> float:
    """Seconds of the host that no layout's step stays below: one micro-batch goes through all layers and the loss.

    A backward cut in two may leave to others at most half of what a block's takes: gradients of inputs have no less to
    compute than those of weights, unless these are made anew.
    """
    passes = 1.0 if work.inventory.bare else 1.5
    return work.model.num_layers * passes * launch_seconds(work) + host_seconds(work)


def host_seconds(work: Work) -> float:
    """Of the host around a step."""
    return 0.0 if work.cluster.gpu.kind == "cpu" else HOST_SECONDS_PER_STEP


def endings_of(work: Work) -> tuple[Ending, ...]:
    """What the ranks at each pipeline coordinate do behind their last backward."""
    elements = _trained_elements(work)
    made = {trained: _ending(work, trained) for trained in set(elements)}
    return tuple(made[trained] for trained in elements)


def _ending(work: Work, trained: float) -> Ending:
    named = (
        ("reduce gradients", _late_reduction(work, trained)),
        ("optimizer", _optimizer(work, trained)),
        ("gather weights", _late_gather(work, trained)),
    )
    return Ending(tuple((name, piece) for name, piece in named if piece.seconds))


def _trained_elements(work: Work) -> list[float]:
    """Trained elements of a rank at each pipeline coordinate, were it not sharded over data ranks."""
    layout, spans = work.execution.layout, _blocks(work)
    block = mean(work, lambda unit: unit.trained_elements)
    held = [blocks * block for blocks in spans]
    for stage in {0, len(spans) - 1}:
        held[stage] += _outer(work, stage).trained_elements
    return [sum(held[stage] for stage in range(pp, len(spans), layout.pp)) / layout.tp for pp in range(layout.pp)]


def _late_reduction(work: Work, trained: float) -> Piece:
    """Gradients that nothing reduced during backward: replicated ones where DDP does not work, those of rings, and
    those that FSDP was told to postpone."""
    layout = work.execution.layout
    held = trained * work.types.trainable
    if work.execution.postpones_reduction:
        seconds = reduced_at_once(work, trained * REDUCTION_BYTES)
    elif work.sharded:
        seconds = group_of(work.cluster, layout, "cp").all_reduce(held / layout.dp_shard)
    elif work.replicated:
        seconds = 0.0
    else:
        seconds = group_of(work.cluster, layout, "dp_replicate", "dp_shard", "cp").all_reduce(held)
    return Piece(seconds, 0.0, seconds)


def _late_gather(work: Work, trained: float) -> Piece:
    """Under ZeRO-1 each rank has renewed its own rows of every weight, and hands them to the others."""
    layout = work.execution.layout
    if layout.dp_shard == 1 or work.sharded:
        return Piece(0.0, 0.0)
    seconds = group_of(work.cluster, layout, "dp_shard").gather(trained * work.types.trainable)
    return Piece(seconds, 0.0, seconds)


def _optimizer(work: Work, trained: float) -> Piece:
    """Reading and writing weights, gradients and states of this rank's share; the host launches operators for each."""
    device, share = device_of(work), trained / work.execution.layout.dp_shard
    states = 2 if work.execution.optimizer.startswith("adamw") else 1
    width = work.types.trainable
    if work.execution.optimizer_on_host and work.setting.cuda:
        return _on_host(work, share * width, states)
    seconds = device.bytes_moved(share * width * ((2 + states) * _OPTIMIZER_PASSES + _CLIPPING_PASSES))
    host = _OPTIMIZER_OPERATORS * HOST_SECONDS_PER_OPERATOR
    return Piece(seconds + host if work.cluster.gpu.kind == "cpu" else max(seconds, host), seconds)


def _on_host(work: Work, held: float, states: int) -> Piece:
    """The step in the host's memory, while the GPU waits.

    Where the parameters lie there, so do their gradients, which are clipped there. Otherwise gradients, clipped on the
    GPU, come and new values go back.

    Args:
        held: bytes of the trained weights of this rank's share.
        states: tensors of that size that the optimizer keeps.
    """
    passes = (2 + states) * _OPTIMIZER_PASSES
    if work.execution.parameters_on_host:
        return Piece(held * (passes + _CLIPPING_PASSES) / CPU_OPTIMIZER_BYTES_PER_SECOND, 0.0)
    clipping = device_of(work).bytes_moved(held * _CLIPPING_PASSES)
    moved = 2 * held / OFFLOAD_BYTES_PER_SECOND
    return Piece(clipping + moved + held * passes / CPU_OPTIMIZER_BYTES_PER_SECOND, clipping)
