"""A stage's forward and backward, its blocks in turn with the gathers and reductions beside them;
and what follows a rank's last backward.

FSDP gathers one unit ahead and reduces one behind, on the same links, and fetches offloaded weights
ahead (one GPU alone waits for them). DDP reduces a block's gradients while earlier blocks go
backward. On CPU processes nothing runs beside anything: gloo moves and sums bytes on the core that
computes.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.plan.costs.fsdp import copies_of_unit, num_units
from shardwise.plan.costs.gradients import late_reduction, sum_of_ends
from shardwise.plan.costs.offload import fetch_seconds, fetches_ahead
from shardwise.plan.costs.optimizer import optimizer_step
from shardwise.plan.costs.piece import NO_TIME, MessageTime, RankTime
from shardwise.plan.costs.zero1 import late_gather
from shardwise.plan.rates import CONTENTION
from shardwise.plan.time.pieces import Pieces
from shardwise.plan.time.pipeline import StageSeconds
from shardwise.plan.work import Work
from shardwise.spec.model.stages import stage_sizes


@dataclass(eq=False, slots=True)
class StageTime:
    """What one rank does for one micro-batch with one stage's blocks, or units of several blocks.
    `forward` and `backward`: one block's, with contention of collectives; `weights`: the part of
    `backward` that makes gradients of weights; `loss`: 0 where another stage has it; `in_turn`:
    collectives run between the blocks. `forward_pass` and `backward_pass`: of all blocks."""

    blocks: int
    forward: RankTime
    backward: RankTime
    weights: float
    loss: RankTime
    messages: MessageTime
    in_turn: bool
    forward_pass: RankTime = field(init=False)
    backward_pass: RankTime = field(init=False)

    def __post_init__(self) -> None:
        self.forward_pass, self.backward_pass = self._forward(), self._backward()

    def _forward(self) -> RankTime:
        """All blocks. The first gather is waited for; each other runs beside the block before."""
        n, piece, message = self.blocks, self.forward, self.messages
        if self.in_turn:
            return self._in_turn(piece, message.outer_gather + n * message.gather + message.head_gather)
        waited = message.outer_gather + (min(message.gather, piece.seconds) if message.gather else 0.0)
        seconds = waited + n * max(message.gather, piece.seconds) + max(0.0, message.head_gather - piece.seconds)
        computing = n * piece.computing
        return RankTime(seconds, computing, _busy(n, piece, message.gather, seconds) - computing)

    def _backward(self) -> RankTime:
        """Loss and all blocks. Each gather runs beside the block before it in backward, each
        reduction beside the next; the last reductions are waited for."""
        n, piece, message = self.blocks, self.backward, self.messages
        again, reduce, b = message.again, message.reduce, piece.seconds
        if self.in_turn:
            outer = message.head_reduce + message.outer_reduce + message.outer_again
            return self._in_turn(piece, outer + n * (again + reduce), loss=self.loss)
        loss = max(self.loss.seconds, again)
        tail = reduce + message.outer_reduce
        if n == 1:
            seconds = loss + max(b, message.head_reduce + message.outer_again) + tail
        else:
            first, last = message.head_reduce + again if again else 0.0, reduce + message.outer_again
            seconds = loss + max(b, first) + (n - 2) * max(b, again + reduce) + max(b, last) + tail
            # Reductions queue on one stream: together they may take longer than the blocks.
            seconds = max(seconds, loss + message.head_reduce + (n - 1) * reduce + tail)
        computing = self.loss.computing + n * piece.computing
        busy = max(self.loss.busy, again) + _busy(n, piece, again + reduce, seconds - loss)
        return RankTime(seconds, computing, busy - computing)

    @property
    def actions(self) -> StageSeconds:
        """The stage as the pipeline sees it."""
        return StageSeconds(self.forward_pass.seconds, self.backward_pass.seconds, self.blocks * self.weights)

    def _in_turn(self, piece: RankTime, messages: float, *, loss: RankTime = NO_TIME) -> RankTime:
        """All blocks and the loss, and so many seconds of messages between them."""
        seconds, computing, talking = (self.blocks * one + other for one, other in zip(piece, loss, strict=True))
        return RankTime(seconds + messages, computing, talking + messages)


def stage_of(work: Work, pieces: Pieces, sent: MessageTime, *, blocks: int, last: bool) -> StageTime:
    """A stage of so many blocks with one micro-batch's messages; the last has head and loss."""
    units = num_units(work, blocks) if work.sharded else blocks
    copy_out, copy_in, host = work.once("copies", lambda: copies_of_unit(work)) if work.sharded else (0.0, 0.0, 0.0)
    again = float(work.execution.layout.reshard_after_forward)
    in_turn = work.cluster.gpu.kind == "cpu"
    fetches = work.execution.parameters_on_host and not fetches_ahead(work)
    waited = work.mean(lambda unit: fetch_seconds(work, unit)) if fetches else 0.0
    each = blocks / units
    # The embedding, and norm and head, are units too.
    host *= 1 + (bool(sent.outer_gather) + bool(sent.head_gather)) / units if in_turn else 1
    beside = MessageTime() if in_turn else sent
    forward = _beside(pieces.forward, each, each * copy_out, host + each * waited, talking=beside.gather)
    back, host_back = each * (copy_in + again * copy_out), host + again * each * waited
    backward = _beside(pieces.backward, each, back, host_back, talking=beside.again + beside.reduce)
    loss = pieces.loss if last else NO_TIME
    return StageTime(units, forward, backward, each * pieces.weights, loss, sent, in_turn)


def _beside(piece: RankTime, count: float, copying: float, host: float, *, talking: float) -> RankTime:
    """A piece of computation, so many times, with collectives running beside it."""
    seconds, computing, exchanged = (count * part for part in piece)
    extra = copying + CONTENTION * min(talking, seconds)
    return RankTime(seconds + extra + host, computing + extra, exchanged)


def _busy(blocks: int, piece: RankTime, message: float, seconds: float) -> float:
    """Seconds of a pass in which any kernel runs: a block's own, or those of messages beside it."""
    idle = blocks * max(0.0, piece.seconds - max(piece.busy, message))
    return max(blocks * piece.busy, seconds - idle)


class Ending(NamedTuple):
    """What a rank does after its last backward: (name, piece), in order, and their seconds."""

    pieces: tuple[tuple[str, RankTime], ...]
    seconds: float


def endings_of(work: Work) -> tuple[Ending, ...]:
    """What the ranks at each pipeline coordinate do behind their last backward."""
    return work.once("endings", lambda: _endings(work), work.execution.layout.schedule)


def _endings(work: Work) -> tuple[Ending, ...]:
    elements, tied = _trained_elements(work), sum_of_ends(work)
    keys = [(trained, tied if pp in (0, len(elements) - 1) else NO_TIME) for pp, trained in enumerate(elements)]
    made = {key: _ending(work, *key) for key in set(keys)}
    return tuple(made[key] for key in keys)


def _ending(work: Work, trained: float, tied: RankTime) -> Ending:
    named = (
        ("reduce gradients", late_reduction(work, trained)),
        ("add tied gradients", tied),
        ("optimizer", optimizer_step(work, trained)),
        ("gather weights", late_gather(work, trained)),
    )
    pieces = tuple((name, piece) for name, piece in named if piece.seconds)
    return Ending(pieces, sum(piece.seconds for _, piece in pieces))


def _trained_elements(work: Work) -> list[float]:
    """Trained elements of a rank at each pipeline coordinate, if not sharded over data ranks."""
    layout = work.execution.layout
    held = [blocks * work.trained_of_mean for blocks in stage_sizes(work.model, num_stages=layout.num_stages)]
    for stage in {0, len(held) - 1}:
        held[stage] += work.outer_of_stage(stage).whole.trained_elements
    return [sum(held[stage] for stage in range(pp, len(held), layout.pp)) / layout.tp for pp in range(layout.pp)]
