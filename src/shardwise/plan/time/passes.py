"""A stage's forward and backward: its blocks in turn, with the gathers and reductions beside them.

FSDP gathers one unit ahead and reduces one behind, on the same links, and fetches offloaded weights ahead (one GPU
alone waits for them). DDP reduces a block's gradients while earlier blocks go backward. On CPU processes nothing runs
beside anything: gloo moves and sums bytes on the core that computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shardwise.plan.rates import CONTENTION, COPY_PASSES, HOST_SECONDS_PER_UNIT, Group, copy_seconds, group_of
from shardwise.plan.time.pieces import Piece, Pieces, device_of
from shardwise.plan.work import REDUCTION_BYTES, Unit, Work, ends_of, mean, weight_degree
from shardwise.spec.cluster import Cluster
from shardwise.spec.layout.axes import Layout

NO_TIME = Piece(0.0, 0.0)


class Messages(NamedTuple):
    """Seconds of collectives: gathering the mean block's weights, again in backward, reducing its gradients; the same
    of what a stage holds before its blocks and beside them (`outer_`); and of its final norm and head."""

    gather: float = 0.0
    again: float = 0.0
    reduce: float = 0.0
    outer_gather: float = 0.0
    outer_reduce: float = 0.0
    outer_again: float = 0.0
    head_gather: float = 0.0
    head_reduce: float = 0.0


@dataclass(eq=False, slots=True)
class Stage:
    """What one rank does for one micro-batch with one stage's blocks, or units of several blocks. `forward` and
    `backward` are of one block with contention of collectives; `weights` is the part of `backward` that makes gradients
    of weights; `loss` takes no time where another stage has it; `in_turn`: collectives run between the blocks."""

    blocks: int
    forward: Piece
    backward: Piece
    weights: float
    loss: Piece
    messages: Messages
    in_turn: bool

    def forward_pass(self) -> Piece:
        """All blocks. The first gather is waited for; each other one, and the head's, runs beside the block before."""
        n, piece, message = self.blocks, self.forward, self.messages
        if self.in_turn:
            return self._in_turn(piece, message.outer_gather + n * message.gather + message.head_gather)
        waited = message.outer_gather + (min(message.gather, piece.seconds) if message.gather else 0.0)
        seconds = waited + n * max(message.gather, piece.seconds) + max(0.0, message.head_gather - piece.seconds)
        computing = n * piece.computing
        return Piece(seconds, computing, _busy(n, piece, message.gather, seconds) - computing)

    def backward_pass(self) -> Piece:
        """Loss and all blocks. Each gather runs beside the block before it in backward, each reduction beside the next;
        the last reductions are waited for."""
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
            seconds = max(seconds, loss + message.head_reduce + (n - 1) * reduce + tail)
        computing = self.loss.computing + n * piece.computing
        busy = max(self.loss.busy, again) + _busy(n, piece, again + reduce, seconds - loss)
        return Piece(seconds, computing, busy - computing)

    def _in_turn(self, piece: Piece, messages: float, *, loss: Piece = NO_TIME) -> Piece:
        """All blocks and the loss, and so many seconds of messages between them."""
        seconds, computing, talking = (self.blocks * one + other for one, other in zip(piece, loss, strict=True))
        return Piece(seconds + messages, computing, talking + messages)


NO_MESSAGES = Messages()
_NOTHING = Unit(tensors=())


def stage_of(work: Work, pieces: Pieces, sent: Messages, *, blocks: int, last: bool) -> Stage:
    """A stage of so many blocks with the messages of one micro-batch; the last one has the head and the loss."""
    units = num_units(work, blocks) if work.sharded else blocks
    copy_out, copy_in, host = work.once("copies", lambda: _copies(work)) if work.sharded else (0.0, 0.0, 0.0)
    again = float(work.execution.layout.reshard_after_forward)
    waited = 0.0 if _fetches_ahead(work) else mean(work, lambda unit: _fetch_seconds(work, unit))
    each = blocks / units
    in_turn = work.cluster.gpu.kind == "cpu"
    # The embedding, and norm and head, are units too.
    host *= 1 + (bool(sent.outer_gather) + bool(sent.head_gather)) / units if in_turn else 1
    beside = NO_MESSAGES if in_turn else sent
    forward = _beside(pieces.forward, each, each * copy_out, host + each * waited, talking=beside.gather)
    back, host_back = each * (copy_in + again * copy_out), host + again * each * waited
    backward = _beside(pieces.backward, each, back, host_back, talking=beside.again + beside.reduce)
    loss = pieces.loss if last else NO_TIME
    return Stage(units, forward, backward, each * pieces.weights, loss, sent, in_turn)


def num_units(work: Work, blocks: int) -> int:
    """Units that so many blocks of a stage are gathered in."""
    return -(-blocks // work.unit_blocks)


def _beside(piece: Piece, count: float, copying: float, host: float, *, talking: float) -> Piece:
    """A piece of computation, so many times, with collectives running beside it."""
    seconds, computing, exchanged = (count * part for part in piece)
    extra = copying + CONTENTION * min(talking, seconds)
    return Piece(seconds + extra + host, computing + extra, exchanged)


def _busy(blocks: int, piece: Piece, message: float, seconds: float) -> float:
    """Seconds of a pass in which any kernel runs: a block's own, or those of the messages beside it."""
    idle = blocks * max(0.0, piece.seconds - max(piece.busy, message))
    return max(blocks * piece.busy, seconds - idle)


def _copies(work: Work) -> tuple[float, float, float]:
    """Copying a block's weights out of the gathered buffer, its gradients into the reduced one; and the host's time."""
    device, tp = device_of(work), work.execution.layout.tp
    gathered, trained = (
        mean(work, lambda unit: unit.gathered_bytes(work.types)),
        mean(work, lambda unit: unit.trained_elements),
    )
    copy_out = device.bytes_moved(COPY_PASSES * gathered / tp)
    copy_in = device.bytes_moved(COPY_PASSES * trained * REDUCTION_BYTES / tp)
    gpu = work.cluster.gpu
    return copy_out, copy_in, gpu.unit_seconds / 2 if gpu.kind == "cpu" else HOST_SECONDS_PER_UNIT


def sharded_messages(work: Work, *, outer: Unit, blocks: float = 1.0, last: bool = True) -> Messages:
    """What FSDP sends for a micro-batch with units of so many blocks: weights gathered in the compute type, gradients
    reduced in float32; `outer` is what the stage holds beside its blocks. Some are sent in the `last` alone."""
    layout, execution = work.execution.layout, work.execution
    embedding, head, rest = ends_of(work.inventory, outer)
    if not _fetches_ahead(work):
        head, rest = _NOTHING, outer
    shard, replicate = shard_group(work.cluster, layout), group_of(work.cluster, layout, "dp_replicate")

    def gather(unit: Unit, count: float = blocks) -> float:
        return shard.gather(count * unit.gathered_bytes(work.types) / layout.tp)

    def reduce(unit: Unit, count: float = blocks) -> float:
        if execution.reduce_once and not last:
            return 0.0
        held = count * unit.trained_elements * REDUCTION_BYTES / layout.tp
        return (
            shard.scatter(held)
            + (replicate.all_reduce(held / shard.size) if last or not execution.adds_replicas_once else 0.0)
            + count * _over_the_bus(work, unit.trained_elements * work.types.trainable)
        )

    ahead = mean(work, gather)
    if _fetches_ahead(work):
        ahead += blocks * mean(work, lambda unit: _fetch_seconds(work, unit))
    return Messages(
        gather=ahead,
        again=ahead if layout.reshard_after_forward else 0.0,
        reduce=mean(work, reduce),
        outer_gather=gather(rest, 1) + _fetch_seconds(work, rest),
        outer_reduce=reduce(rest, 1),
        outer_again=gather(embedding, 1) if embedding.trained_elements and layout.reshard_after_forward else 0.0,
        head_gather=gather(head, 1) + _fetch_seconds(work, head),
        head_reduce=reduce(head, 1),
    )


def shard_group(cluster: Cluster, layout: Layout) -> Group:
    """The ranks among which weights, or states, are cut: see `persistent.shard_degree`."""
    axes = ("dp_shard", "cp") if layout.dp_shard > 1 else ("dp_shard",)
    return group_of(cluster, layout, *axes)


def gathered_once(sent: Messages, work: Work) -> Messages:
    """What is sent for the mean micro-batch where weights stay gathered, and gradients whole, until a step ends."""
    micros = work.execution.gradient_accumulation_steps
    return Messages(gather=sent.gather / micros, outer_gather=(sent.outer_gather + sent.head_gather) / micros)


def _fetches_ahead(work: Work) -> bool:
    """Whether FSDP fetches beside the computation; with nothing to gather it does so when a unit is needed."""
    return work.execution.layout.weight_shards > 1


def _fetch_seconds(work: Work, unit: Unit) -> float:
    """A rank's share of a unit from the host's memory, in the types that it is stored in."""
    return _over_the_bus(work, unit.stored_bytes(work.types))


def _over_the_bus(work: Work, whole: float) -> float:
    if not (work.execution.parameters_on_host and work.setting.cuda):
        return 0.0
    layout = work.execution.layout
    return copy_seconds(work.cluster, whole / layout.tp / weight_degree(layout))


def reduced_messages(work: Work, *, outer: Unit) -> Messages:
    """What DDP sends in the last micro-batch's backward: a bucket for each block, in the gradients' own type."""
    width = work.types.trainable
    group = group_of(work.cluster, work.execution.layout, "dp_replicate", "dp_shard")
    _, head, rest = ends_of(work.inventory, outer)
    return Messages(
        reduce=group.all_reduce(mean(work, lambda unit: unit.trained_elements) * width),
        outer_reduce=group.all_reduce(rest.trained_elements * width),
        head_reduce=group.all_reduce(head.trained_elements * width),
    )
