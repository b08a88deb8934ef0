"""Seconds of the pieces of a step on one rank: the mean block's two passes, and the loss."""

from collections.abc import Callable
from typing import NamedTuple

from shardwise.plan.costs.autocast import weight_bytes
from shardwise.plan.costs.context import key_seconds, operators_of_gather
from shardwise.plan.costs.experts import dealing, routed_seconds
from shardwise.plan.costs.loss import head_and_loss
from shardwise.plan.costs.piece import BlockTime, RankTime, device_of, launched
from shardwise.plan.costs.products import (
    attention_seconds,
    fused_share,
    kernel_seconds,
    row_length,
    seconds_of_products,
)
from shardwise.plan.costs.recompute import copied_seconds, dispatched_operators, seconds_again
from shardwise.plan.costs.tensor import slice_seconds, whole_gradients
from shardwise.plan.rates import Device
from shardwise.plan.work import Work
from shardwise.spec.model.profile import Amount, BlockProfile, ModelProfile

#: Operators of a block's forward in eager PyTorch (norms and rotary embedding written out), and
#: those of one adapter; its backward has twice as many, a gradient for each of two factors.
_OPERATORS_PER_BLOCK = 45
_OPERATORS_PER_ADAPTER = 8
#: Operators of the norms that DoRA takes, and of its magnitudes.
_OPERATORS_PER_NORM = 14
#: Memory passes of operators between products: each saved byte, written and read, and temporaries.
_FORWARD_PASSES, _BACKWARD_PASSES = 2.5, 5.0


class Pieces(NamedTuple):
    """The pieces of a micro-batch: forward and backward of the mean block, with recomputation; the
    part of `backward` that makes gradients of weights; head and loss in both directions."""

    forward: RankTime
    backward: RankTime
    weights: float
    loss: RankTime


def masked_share(work: Work) -> float:
    """Share of the mean block's forward that attention with a mask takes."""
    _, (masked, _) = kernel_seconds(work, device_of(work))
    return masked / pieces_of(work).forward.seconds


def pieces_of(work: Work, ran: BlockTime | None = None) -> Pieces:
    """The pieces of one micro-batch on one rank; `ran` where it is known."""
    ran = ran or ran_by(work)
    again, again_talking = seconds_again(work, ran)
    if work.profile is not None:
        again = 0.0
    once_more = 0 if work.execution.recompute == "none" else 1
    dispatched = dispatched_operators(work, ran)
    forward = launched(work, ran.forward, operators=ran.operators + dispatched, talking=ran.slices + ran.keys)
    backward = launched(
        work,
        ran.backward + again,
        operators=ran.operators * (2 + once_more) + dispatched,
        talking=ran.slices + 2 * ran.keys + again_talking,
    )
    copied = copied_seconds(work)
    return Pieces(
        forward=forward._replace(seconds=max(forward.seconds, copied)),
        backward=backward._replace(seconds=max(backward.seconds, copied)),
        weights=ran.weights,
        loss=ran.loss,
    )


def ran_by(work: Work) -> BlockTime:
    """What a rank runs of one micro-batch, whatever of it is recomputed."""
    device, layout = device_of(work), work.execution.layout
    tokens = work.tokens
    made = _profiled(work, work.profile, device, tokens) if work.profile else _by_rules(work, device, tokens)
    cast, summed = (device.bytes_moved(moved) / layout.tp for moved in weight_bytes(work, work.trained_of_mean))
    return made._replace(
        forward=made.forward + cast,
        backward=made.backward + summed,
        slices=slice_seconds(work, tokens, device) + dealing(work, tokens),
        keys=key_seconds(work, tokens),
        loss=head_and_loss(work, device),
    )


def _by_rules(work: Work, device: Device, tokens: float) -> BlockTime:
    products, weights, inputs, remade = seconds_of_products(work, device, tokens)
    attention, attention_back = attention_seconds(work, device)
    moved = device.bytes_moved(tokens * work.of_block.saved_whole) * fused_share(work)
    routed = routed_seconds(work, device, tokens)
    between, whole = _FORWARD_PASSES * moved + routed, whole_gradients(work, tokens, device)
    each = _OPERATORS_PER_ADAPTER + (_OPERATORS_PER_NORM if work.inventory.dora else 0)
    operators = _OPERATORS_PER_BLOCK + each * len(work.inventory.adapted)
    return BlockTime(
        forward=products + attention + between,
        backward=inputs + weights + attention_back + _BACKWARD_PASSES * moved + 2 * routed + whole,
        weights=weights,
        remade=remade,
        between=between,
        attention=attention,
        operators=operators + operators_of_gather(work),
    )


def _profiled(work: Work, profile: ModelProfile, device: Device, tokens: float) -> BlockTime:
    """Likewise, of blocks that were measured: FLOPs at the rate of products, and bytes that other
    operators move. What a backward computes again is in its numbers."""
    length, counts = row_length(work), [kind.num_layers for kind in work.model.kinds]

    def mean(of: Callable[[BlockProfile], float]) -> float:
        each = (count * of(block) for count, block in zip(counts, profile.blocks, strict=True))
        return sum(each) / work.model.num_layers

    def whole(of: Callable[[BlockProfile], Amount]) -> float:
        return mean(lambda block: work.tokens * of(block).per_token(length) + of(block).once)

    forward = whole(lambda block: block.flops) / device.ceiling
    backward = whole(lambda block: block.flops_backward) / device.ceiling
    return BlockTime(
        forward=forward + device.bytes_moved(whole(lambda block: block.moved)),
        backward=backward + device.bytes_moved(whole(lambda block: block.moved_backward)),
        weights=seconds_of_products(work, device, tokens)[1],
        operators=mean(lambda block: block.operators),
    )
