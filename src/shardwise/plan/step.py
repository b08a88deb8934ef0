"""One optimizer step of an execution: what every pipeline rank does, pass by pass, and what follows the last backward.

Ranks along the other axes are alike: one of each pipeline coordinate is the whole step.
"""

from __future__ import annotations

from typing import NamedTuple

from shardwise.plan.inventory import Unit
from shardwise.plan.kernels import (
    CPU_OPTIMIZER_BYTES_PER_SECOND,
    HOST_SECONDS_PER_OPERATOR,
    HOST_SECONDS_PER_STEP,
    OFFLOAD_BYTES_PER_SECOND,
)
from shardwise.plan.links import group_of
from shardwise.plan.passes import Messages, Stage, mean, reduced_messages, sharded_messages, stage_of
from shardwise.plan.pieces import Piece, Pieces, device_of, pieces_of
from shardwise.plan.pipeline import StageSeconds, rank_ends
from shardwise.plan.types import FLOAT32_BYTES
from shardwise.plan.work import Work
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
    """Every stage of the pipeline, which is one where there is none."""
    spans = _blocks(work)
    return tuple(
        stage_of(
            work,
            pieces,
            _messages(work, _outer(work, index), reduces=last_micro_batch),
            blocks=blocks,
            last=index == len(spans) - 1,
            inside_hooks=work.sharded,
        )
        for index, blocks in enumerate(spans)
    )


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


def _messages(work: Work, outer: Unit, *, reduces: bool) -> Messages:
    if work.sharded:
        return sharded_messages(work, outer=outer)
    return reduced_messages(work, outer=outer) if reduces and work.replicated else Messages()


def step_of(work: Work) -> Step:
    """The time of one optimizer step."""
    pieces = pieces_of(work)
    stages = stages_of(work, pieces)
    ahead, back = [stage.forward_pass() for stage in stages], [stage.backward_pass() for stage in stages]
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    endings = [ending_of(work, stage) for stage in range(layout.pp)]
    if layout.pp > 1:
        ends = rank_ends(
            layout.schedule, stages=stage_seconds(stages), num_micro_batches=micros, send=send_seconds(work)
        )
    else:
        final = stages_of(work, pieces, last_micro_batch=True)[0].backward_pass() if work.replicated else back[0]
        ends = (micros * ahead[0].seconds + (micros - 1) * back[0].seconds + final.seconds,)
        back[0] = _averaged(back[0], final, micros)
    seconds = max(end + ending.seconds for end, ending in zip(ends, endings, strict=True)) + _host_seconds(work)
    passes = [*ahead, *back]
    computing = micros * sum(piece.computing for piece in passes) + sum(
        piece.computing for ending in endings for _, piece in ending.pieces
    )
    busy = micros * sum(piece.busy for piece in passes) + sum(
        piece.busy for ending in endings for _, piece in ending.pieces
    )
    return Step(seconds, computing / layout.pp, busy / layout.pp)


def _averaged(one: Piece, final: Piece, micros: int) -> Piece:
    """The mean of all micro-batches' backwards, of which the last is another."""
    return Piece(*(((micros - 1) * a + b) / micros for a, b in zip(one, final, strict=True)))


def stage_seconds(stages: tuple[Stage, ...]) -> tuple[StageSeconds, ...]:
    """Stages as the pipeline sees them."""
    return tuple(
        StageSeconds(stage.forward_pass().seconds, stage.backward_pass().seconds, stage.blocks * stage.weights)
        for stage in stages
    )


def send_seconds(work: Work) -> float:
    """Seconds until a micro-batch's stream has reached the next stage; its ranks send their own parts of it."""
    layout = work.execution.layout
    tokens = work.execution.micro_batch_size * work.job.data.max_length / layout.cp
    return group_of(work.cluster, layout, "pp").message(tokens * work.model.hidden_size * work.types.compute)


def _host_seconds(work: Work) -> float:
    return 0.0 if work.cluster.gpu.kind == "cpu" else HOST_SECONDS_PER_STEP


def ending_of(work: Work, pp: int) -> Ending:
    """What the ranks at one pipeline coordinate do behind their last backward."""
    trained = _trained_elements(work, pp)
    named = (
        ("reduce gradients", _late_reduction(work, trained)),
        ("optimizer", _optimizer(work, trained)),
        ("gather weights", _late_gather(work, trained)),
    )
    return Ending(tuple((name, piece) for name, piece in named if piece.seconds))


def _trained_elements(work: Work, pp: int) -> float:
    """Trained elements of a rank, were it not sharded over data ranks."""
    layout, spans = work.execution.layout, _blocks(work)
    stages = layout.stages_of(pp) if layout.pp > 1 else (0,)
    blocks = sum(spans[stage] for stage in stages)
    outer = sum(_outer(work, stage).trained_elements for stage in stages)
    return (blocks * mean(work, lambda unit: unit.trained_elements) + outer) / layout.tp


def _late_reduction(work: Work, trained: float) -> Piece:
    """Gradients that nothing reduced during backward: replicated ones where DDP does not work, and those of rings."""
    layout = work.execution.layout
    held = trained * work.types.trainable
    if work.sharded:
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
    """Reading and writing weights, gradients and states of this rank's share; the host walks over all tensors."""
    device, share = device_of(work), trained / work.execution.layout.dp_shard
    states = 2 if work.execution.optimizer in ("adamw", "adamw_8bit") else 1
    width = work.types.trainable
    if work.execution.offload in ("optimizer", "all"):
        walked = share * FLOAT32_BYTES * (2 + states) * _OPTIMIZER_PASSES / CPU_OPTIMIZER_BYTES_PER_SECOND
        return Piece(walked + 2 * share * width / OFFLOAD_BYTES_PER_SECOND, 0.0)
    seconds = device.bytes_moved(share * width * ((2 + states) * _OPTIMIZER_PASSES + _CLIPPING_PASSES))
    host = _OPTIMIZER_OPERATORS * HOST_SECONDS_PER_OPERATOR
    return Piece(seconds + host if work.cluster.gpu.kind == "cpu" else max(seconds, host), seconds)
