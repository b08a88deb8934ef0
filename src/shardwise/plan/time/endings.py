"""What follows a rank's last backward in a step: gradients still to be summed, the optimizer, new weights."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.plan.rates import CPU_OPTIMIZER_BYTES_PER_SECOND, Group, copy_seconds, group_of
from shardwise.plan.time.passes import NO_TIME, shard_group
from shardwise.plan.time.pieces import Piece, device_of
from shardwise.plan.work import (
    REDUCTION_BYTES,
    Work,
    blocks_of_stages,
    mean,
    outer_of_stage,
    shard_degree,
    weight_degree,
)

#: The optimizer reads weight, gradient and states and writes weight and states; clipping reads gradients twice.
_OPTIMIZER_PASSES, _CLIPPING_PASSES = 2.0, 2.0
_OPTIMIZER_OPERATORS = 40


class Ending(NamedTuple):
    """What a rank does behind its last backward: (name, piece), in order."""

    pieces: tuple[tuple[str, Piece], ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(piece.seconds for _, piece in self.pieces)


def endings_of(work: Work) -> tuple[Ending, ...]:
    """What the ranks at each pipeline coordinate do behind their last backward."""
    return work.once("endings", lambda: _endings(work), work.execution.layout.schedule)


def _endings(work: Work) -> tuple[Ending, ...]:
    elements, tied = _trained_elements(work), _sum_of_ends(work)
    keys = [(trained, pp in (0, len(elements) - 1)) for pp, trained in enumerate(elements)]
    made = {key: _ending(work, key[0], tied=tied if key[1] else NO_TIME) for key in set(keys)}
    return tuple(made[key] for key in keys)


def _ending(work: Work, trained: float, *, tied: Piece) -> Ending:
    named = (
        ("reduce gradients", _late_reduction(work, trained)),
        ("add tied gradients", tied),
        ("optimizer", _optimizer(work, trained)),
        ("gather weights", _late_gather(work, trained)),
    )
    return Ending(tuple((name, piece) for name, piece in named if piece.seconds))


def _trained_elements(work: Work) -> list[float]:
    """Trained elements of a rank at each pipeline coordinate, were it not sharded over data ranks."""
    layout, spans = work.execution.layout, blocks_of_stages(work.model, work.execution.layout)
    block = mean(work, lambda unit: unit.trained_elements)
    held = [blocks * block for blocks in spans]
    for stage in {0, len(spans) - 1}:
        held[stage] += outer_of_stage(work, stage).trained_elements
    return [sum(held[stage] for stage in range(pp, len(spans), layout.pp)) / layout.tp for pp in range(layout.pp)]


def _late_reduction(work: Work, trained: float) -> Piece:
    """Gradients that backward did not reduce: of replicas without DDP, of rings, and postponed ones; in a pipeline also
    what stages' last backwards reduce."""
    layout = work.execution.layout
    held, whole = trained * work.types.trainable, trained * REDUCTION_BYTES
    over_replicas = group_of(work.cluster, layout, "dp_replicate").all_reduce(whole / shard_degree(layout))
    if work.execution.postpones_reduction or (work.execution.reduce_once and layout.pp > 1):
        seconds = shard_group(work.cluster, layout).scatter(whole) + over_replicas
    elif work.execution.adds_replicas_once and layout.pp > 1:
        seconds = over_replicas
    elif work.sharded:
        # What is sharded is so over the ranks of a ring too.
        seconds = 0.0 if layout.dp_shard > 1 else group_of(work.cluster, layout, "cp").all_reduce(held)
    elif work.replicated:
        seconds = 0.0
    else:
        seconds = group_of(work.cluster, layout, "dp_replicate", "dp_shard", "cp").all_reduce(held)
    return Piece(seconds, 0.0, seconds)


def _sum_of_ends(work: Work) -> Piece:
    """A tied weight that is trained lies at both ends of a pipeline, which add up what each has of its gradient."""
    layout = work.execution.layout
    if layout.pp == 1 or not work.inventory.tied:
        return NO_TIME
    trained = sum(t.elements for t in work.inventory.root.tensors if t.name == "embedding" and t.trained)
    held = trained * work.types.trainable / layout.tp / weight_degree(layout)
    pipe = group_of(work.cluster, layout, "pp")
    seconds = Group(size=2, link=pipe.hop or pipe.link).all_reduce(held)
    return Piece(seconds, 0.0, seconds)


def _late_gather(work: Work, trained: float) -> Piece:
    """Under ZeRO-1 each rank has renewed its own rows of every weight, and hands them to the others."""
    layout = work.execution.layout
    if layout.dp_shard == 1 or work.sharded:
        return NO_TIME
    seconds = shard_group(work.cluster, work.execution.layout).exchange(trained * work.types.trainable)
    return Piece(seconds, 0.0, seconds)


def _optimizer(work: Work, trained: float) -> Piece:
    """Reading and writing weights, gradients and states of this rank's share; the host launches operators for each."""
    device, share = device_of(work), trained / shard_degree(work.execution.layout)
    states, width = (2 if work.execution.optimizer.startswith("adamw") else 1), work.types.trainable
    if work.execution.optimizer_on_host and work.setting.cuda:
        return _on_host(work, share * width, states)
    seconds = device.bytes_moved(share * width * ((2 + states) * _OPTIMIZER_PASSES + _CLIPPING_PASSES))
    host = _OPTIMIZER_OPERATORS * device.operator_seconds
    return Piece(seconds + host if work.cluster.gpu.kind == "cpu" else max(seconds, host), seconds)


def _on_host(work: Work, held: float, states: int) -> Piece:
    """The step in the host's memory while the GPU waits, of `held` bytes of trained weights; without offloaded
    parameters gradients come, and new values go back."""
    passes = (2 + states) * _OPTIMIZER_PASSES
    if work.execution.parameters_on_host:
        return Piece(held * (passes + _CLIPPING_PASSES) / CPU_OPTIMIZER_BYTES_PER_SECOND, 0.0)
    clipping = device_of(work).bytes_moved(held * _CLIPPING_PASSES)
    moved = 2 * copy_seconds(work.cluster, held)
    return Piece(clipping + moved + held * passes / CPU_OPTIMIZER_BYTES_PER_SECOND, clipping)
