"""Seconds of the pieces of a step on one rank: the mean block's forward and backward with attention, and the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from shardwise.plan.rates import (
    ATTENTION_BACKWARD,
    COMPILED_OPERATORS_SHARE,
    DISPATCH_OVER_OPERATOR,
    MASKED_ATTENTION,
    Device,
    copy_seconds,
    group_of,
)
from shardwise.plan.time.products import fused_share, seconds_of_products
from shardwise.plan.work import FLOAT32_BYTES, Work
from shardwise.spec.support.attention import KEPT_BY_SELECTIVE, MASKED

#: Operators of a block's forward in eager PyTorch (norms and rotary embedding written out), and those of one adapter;
#: its backward has twice as many, a gradient for each of two factors.
_OPERATORS_PER_BLOCK = 45
_OPERATORS_PER_ADAPTER = 8
#: Those that gather keys and values of a sequence in parts, put them in order, and compute two parts for one.
_OPERATORS_PER_GATHER = 16
#: Operators of the norms that DoRA takes, and of its magnitudes.
_OPERATORS_PER_NORM = 14
_OPERATORS_PER_LOSS = 20
#: Passes over memory of the operators between the products: each saved byte is written and read, with temporaries.
_FORWARD_PASSES, _BACKWARD_PASSES = 2.5, 5.0
#: Attention written out: the scores go through memory this often in forward (scaled, masked, softmax in float32, cast).
_EAGER_SCORE_PASSES = 6
#: Logits in float32 go through memory this often: largest, shifted, raised, summed, and made into gradients.
_LOGIT_PASSES = 8
#: One compiled kernel reads them thrice in the compute type, and writes their gradients.
_COMPILED_LOGIT_PASSES = 4
#: Collectives that tensor parallelism waits for in one pass of a block: before and after attention, and the MLP.
_TENSOR_COLLECTIVES = 4
#: Of these, those that are made again where a block is recomputed, in full or but for its products: `checkpoint` stops
#: at the last tensor that backward asks for, before the sum behind the block's last matrix.
_SLICES_AGAIN = 0.75


class Piece(NamedTuple):
    """One stretch of a rank's time, and the seconds of it in which a compute kernel, or nothing but a collective,
    runs."""

    seconds: float
    computing: float
    talking: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds in which any kernel runs."""
        return self.computing + self.talking


class Pieces(NamedTuple):
    """The pieces of a micro-batch: forward and backward of the mean block, with what is recomputed; the part of
    `backward` that makes gradients of weights; head and loss in both directions."""

    forward: Piece
    backward: Piece
    weights: float
    loss: Piece


class Ran(NamedTuple):
    """Seconds of the mean block's kernels: forward and backward; in backward, gradients of weights; in forward, what
    selective recompute does again, what lies between products, and attention. Of messages in a pass: of slices, and of
    keys and values; operators of a forward; and head and loss."""

    forward: float
    backward: float
    weights: float
    remade: float
    between: float
    attention: float
    slices: float
    keys: float
    operators: float
    loss: Piece


def device_of(work: Work) -> Device:
    """The rank's GPU, in the type that it computes in. CPU processes share all cores, however few they are."""
    gpu, types = work.cluster.gpu, work.types
    share = work.cluster.num_gpus / work.execution.layout.world_size if gpu.kind == "cpu" else 1.0
    return Device(gpu=gpu, compute=types.compute_name, element_bytes=types.compute, share=share)


def masked_share(work: Work) -> float:
    """Share of the mean block's forward that attention with a mask takes."""
    _, (masked, _) = _kernel_seconds(work, device_of(work))
    return masked / pieces_of(work).forward.seconds


def pieces_of(work: Work, ran: Ran | None = None) -> Pieces:
    """The pieces of one micro-batch on one rank; `ran` where it is known."""
    ran, execution = ran or ran_by(work), work.execution
    recompute = execution.recompute
    kept = execution.attn_implementation in KEPT_BY_SELECTIVE
    selective = ran.remade + ran.between + (0.0 if kept else ran.attention)
    again = {"none": _written_again(work), "selective": selective}.get(recompute, ran.forward)
    again_talking = 0.0 if recompute == "none" else ran.slices * _SLICES_AGAIN + ran.keys
    once_more = 0 if recompute == "none" else 1
    # In eager mode selective recompute hands every operator to Python.
    eagerly = recompute == "selective" and not execution.compile
    dispatched = ran.operators * DISPATCH_OVER_OPERATOR if eagerly else 0
    forward = _launched(work, ran.forward, operators=ran.operators + dispatched, talking=ran.slices + ran.keys)
    backward = _launched(
        work,
        ran.backward + again,
        operators=ran.operators * (2 + once_more) + dispatched,
        talking=ran.slices + ran.keys + again_talking,
    )
    # What the block before saved leaves, or comes for the next, beside it.
    copied = copy_seconds(work.cluster, work.tokens * work.saved) if work.saves_on_host else 0.0
    return Pieces(
        forward=forward._replace(seconds=max(forward.seconds, copied)),
        backward=backward._replace(seconds=max(backward.seconds, copied)),
        weights=ran.weights,
        loss=ran.loss,
    )


def _written_again(work: Work) -> float:
    """Seconds of writing what a compiled block makes again out of what it saved, without recompute."""
    if not (work.execution.compile and work.execution.recompute == "none"):
        return 0.0
    return device_of(work).bytes_moved(work.tokens * (work.saved_whole - work.saved))


def ran_by(work: Work) -> Ran:
    """What a rank runs of one micro-batch, whatever of it is recomputed."""
    device, execution = device_of(work), work.execution
    layout = execution.layout
    tokens = execution.micro_batch_size * work.job.data.max_length / layout.cp
    products, weights, inputs, remade = seconds_of_products(work, device, tokens)
    attention, attention_back = (sum(ways) for ways in zip(*_kernel_seconds(work, device), strict=True))
    if execution.attn_implementation == "eager":
        scores = execution.micro_batch_size * work.job.data.max_length**2 * work.model.num_attention_heads
        moved = _EAGER_SCORE_PASSES * scores * FLOAT32_BYTES
        walked = device.bytes_moved(moved / layout.tp / layout.cp)
        attention, attention_back = attention + walked, attention_back + ATTENTION_BACKWARD * walked
    moved = device.bytes_moved(tokens * work.saved_whole) * fused_share(work)
    between = _FORWARD_PASSES * moved
    trained = work.inventory.over_blocks(lambda unit: unit.trained_elements) / work.model.num_layers
    cast, summed = (device.bytes_moved(moved) / layout.tp for moved in _weight_bytes(work, trained))
    slices, keys = _talking(work, tokens)
    each = _OPERATORS_PER_ADAPTER + (_OPERATORS_PER_NORM if work.inventory.dora else 0)
    operators = _OPERATORS_PER_BLOCK + each * len(work.inventory.adapted)
    operators += _OPERATORS_PER_GATHER if layout.cp > 1 else 0
    return Ran(
        forward=products + attention + between + cast,
        backward=summed + inputs + weights + attention_back + _BACKWARD_PASSES * moved,
        weights=weights,
        remade=remade,
        between=between,
        attention=attention,
        slices=slices,
        keys=keys,
        operators=operators,
        loss=_loss(work, device),
    )


def _weight_bytes(work: Work, trained: float) -> tuple[float, float]:
    """Bytes that a micro-batch moves of so many trained elements: copies in the compute type in forward; those of
    gradients in backward, with their sum over micro-batches. `passes.py` has FSDP's copies."""
    if work.sharded:
        return 0.0, 0.0
    wide, several = work.types.trainable, work.execution.gradient_accumulation_steps > 1
    copied = trained * (wide + work.types.compute) if work.setting.casts else 0.0
    return copied, copied + 3 * wide * trained * several


def _kernel_seconds(work: Work, device: Device) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of attention's products in a block, forward and backward, on one rank: over scores without a mask, and with
    one."""
    execution = work.execution
    ranks = execution.layout.tp * execution.layout.cp
    plain, masked = (2.0 * execution.micro_batch_size * one / ranks for one in multiplications(work))
    kind = execution.attn_implementation
    return device.attention(plain, kind=kind), device.attention(masked, kind=MASKED_ATTENTION)


def _launched(work: Work, seconds: float, *, operators: float, talking: float = 0.0) -> Piece:
    """A GPU waits where the host launches more slowly than it computes."""
    host = operators * device_of(work).operator_seconds
    if work.cluster.gpu.kind == "cpu":
        return Piece(seconds + host + talking, seconds, talking)
    if work.execution.compile:
        host *= COMPILED_OPERATORS_SHARE
    return Piece(max(seconds, host) + talking, seconds, talking)


def _talking(work: Work, tokens: float) -> tuple[float, float]:
    """Seconds a pass waits for messages inside a block: of tensor parallelism, and of context parallelism, which
    gathers keys and values in forward and adds up their gradients in backward."""
    layout, model = work.execution.layout, work.model
    stream = tokens * model.hidden_size * work.types.compute
    group = group_of(work.cluster, layout, "tp")
    tensor = _TENSOR_COLLECTIVES / 2 * (group.gather(stream) + group.scatter(stream)) + _dealing(work, stream)
    widths = model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim)) / layout.tp
    return tensor, group_of(work.cluster, layout, "cp").gather(tokens * layout.cp * widths * work.types.compute)


def _dealing(work: Work, stream: float) -> float:
    """Seconds in which tokens travel to the experts of other ranks and back, in the mean block, where all experts are
    asked alike: a rank sends what a gather would bring it, for each expert that a token goes to."""
    model, layout = work.model, work.execution.layout
    routes = sum(k.num_layers * max((m.routed for m in k.matrices if m.stacked), default=0) for k in model.kinds)
    if layout.ep == 1:
        return 0.0
    axis = "dp_shard" if layout.dp_shard > 1 else "dp_replicate"
    group = group_of(work.cluster, replace(layout, **{axis: layout.ep, "ep": 1}), axis)
    return 2 * routes / model.num_layers * group.gather(stream)


def _loss(work: Work, device: Device) -> Piece:
    """Head and loss, forward and backward: two or three products and passes over the logits, in turn for each chunk."""
    layout = work.execution.layout
    tokens = work.execution.micro_batch_size * work.job.data.max_length / layout.cp
    sliced, width = work.head_slice, work.model.embedding_width
    at_once = min(tokens, work.head_tokens)
    chunks = tokens / at_once
    products = 2 * device.product(at_once, work.model.vocab_size / layout.tp, width)
    if work.inventory.trained(work.inventory.head_name):
        products += device.product(work.model.vocab_size / layout.tp, width, at_once)
        products += device.bytes_moved(sum(_weight_bytes(work, sliced * width))) / chunks
    compute, compiled = work.types.compute, work.execution.compile
    passed = _COMPILED_LOGIT_PASSES * compute if compiled else _LOGIT_PASSES * FLOAT32_BYTES
    passes = device.bytes_moved(at_once * sliced * passed)
    group = group_of(work.cluster, layout, "tp")
    if work.model.plain_head:  # the largest logit of each position, then a sum and the label's logit
        talking = sum(group.all_reduce(at_once * count * FLOAT32_BYTES) for count in (1, 2))
    else:
        talking = group.gather(at_once * sliced * work.types.compute)
    return _launched(
        work, chunks * (products + passes), operators=_OPERATORS_PER_LOSS * chunks, talking=chunks * talking
    )


def multiplications(work: Work) -> tuple[float, float]:
    """Multiplications of attention in the mean block's forward of one sequence, on all its ranks: without a mask, and
    with one. Causal attention counts half the scores, a window as many as it is long; `sdpa` with a mask (windows,
    packed documents) and eager attention compute all. Other kernels compute documents one by one."""
    model, row, kind = work.model, work.job.data.max_length, work.execution.attn_implementation
    length = row if kind in MASKED or work.document is None else min(row, work.document)
    seen = min(length, model.sliding_window or length)
    windowed = 0 if seen == length else model.num_layers if model.windowed_layers is None else model.windowed_layers
    share = windowed / model.num_layers
    widths = row * model.num_attention_heads * (model.head_dim + (model.value_head_dim or model.head_dim))
    whole, causal, behind = widths * length, widths * _mean_of(length, length), widths * _mean_of(seen, length)
    if kind == "eager":
        return whole, 0.0
    if kind not in MASKED:
        return causal + (behind - causal) * share, 0.0
    masked, cp = 1.0 if work.job.data.packing else share, work.execution.layout.cp
    # Parts of a sequence are compared with what lies before their ends.
    before = whole if cp == 1 else whole * (2 * cp + 1) / (4 * cp)
    return causal * (1 - masked), before * masked


def _mean_of(seen: float, length: float) -> float:
    """Keys that the mean token of a causal sequence sees, of the last so many."""
    return seen - seen * (seen - 1) / (2 * length)
