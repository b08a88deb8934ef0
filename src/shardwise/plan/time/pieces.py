"""Seconds of the pieces of a step on one rank: the mean block's forward and backward, and the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardwise.plan.memory.tensors import FLOAT32_BYTES
from shardwise.plan.memory.work import Work
from shardwise.plan.time.dora import norm_seconds, products_again
from shardwise.plan.time.kernels import (
    COMPILED_OPERATORS_SHARE,
    COMPILED_PASSES_SHARE,
    HOST_SECONDS_PER_OPERATOR,
    MASKED_ATTENTION,
    Device,
)
from shardwise.plan.time.links import group_of
from shardwise.spec.attention import KEPT_BY_SELECTIVE, MASKED
from shardwise.spec.execution import Execution
from shardwise.spec.model import SLICED_BY, Matrix, ModelShape
from shardwise.spec.targets import adapter_rank

#: Operators of a block's forward in eager PyTorch (norms and rotary embedding written out), and those of one adapter.
_OPERATORS_PER_BLOCK = 45
_OPERATORS_PER_ADAPTER = 8
#: Those of the norms that DoRA takes, and of its magnitudes.
_OPERATORS_PER_NORM = 14
_OPERATORS_PER_LOSS = 20
#: Passes over memory of the operators between the products: each saved byte is written and read, with temporaries.
_FORWARD_PASSES, _BACKWARD_PASSES = 2.5, 5.0
#: Attention's backward has five products for two in forward, at a rate somewhat below.
_ATTENTION_BACKWARD = 3.0
#: Bytes that one adapter moves in forward, and about as many in backward, for each element of its input (read once
#: more; dropped) and of its output (made, scaled, added). Copies of another type are among the saved bytes.
_ADAPTER_INPUT_BYTES, _ADAPTER_DROPOUT_BYTES, _ADAPTER_OUTPUT_BYTES = 4, 9, 10
#: 4-bit weights are written out in the compute type before each product, forward and backward: bytes per element, with
#: what their kernel loses.
_DEQUANTISED_BYTES = 5.0
#: A bare parameter with its adapter's product is written anew where it is used: it is read, and the sum written.
_REMADE_PASSES = 2
#: Attention written out: the scores go through memory this often in forward (scaled, masked, softmax in float32, cast).
_EAGER_SCORE_PASSES = 6
#: Whole logits in float32 go through memory this often, forward and backward.
_LOGIT_PASSES = 8
#: Collectives that tensor parallelism waits for in one pass of a block: before and after attention, and the MLP.
_TENSOR_COLLECTIVES = 4
#: Of these, those that are made again where a block is recomputed, in full or but for its products: `checkpoint` stops
#: at the last tensor that backward asks for, before the sum behind the block's last matrix.
_SLICES_AGAIN = 0.75


class Piece(NamedTuple):
    """One stretch of a rank's time.

    Attributes:
        computing: seconds of it in which a compute kernel runs.
        talking: seconds of it in which nothing but a collective runs.
    """

    seconds: float
    computing: float
    talking: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds in which any kernel runs."""
        return self.computing + self.talking


class Pieces(NamedTuple):
    """The pieces of a micro-batch.

    Attributes:
        forward: the mean block's.
        backward: the mean block's, with what is recomputed.
        weights: the part of `backward` that makes gradients of weights.
        loss: head and loss, forward and backward.
    """

    forward: Piece
    backward: Piece
    weights: float
    loss: Piece


def device_of(work: Work) -> Device:
    """The rank's GPU, in the type that it computes in."""
    return Device(gpu=work.cluster.gpu, compute=work.types.compute_name, element_bytes=work.types.compute)


def masked_share(work: Work) -> float:
    """Share of the mean block's forward that attention with a mask takes."""
    _, masked = _kernel_seconds(work, device_of(work), work.execution)
    return masked / pieces_of(work).forward.seconds


def pieces_of(work: Work) -> Pieces:
    """The pieces of one micro-batch on one rank."""
    return PieceMaker(work).of(work.execution)


class PieceMaker:
    """Makes the pieces of executions that differ in nothing but their micro-batch; what they share is found once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._device = device_of(work)
        self._products = [(kind.num_layers * count, _Product(work, one)) for kind, count, one in _by_shape(work)]
        self._fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
        self._operators = _operators(work)

    def of(self, execution: Execution) -> Pieces:
        """The pieces of one micro-batch of an execution."""
        work, recompute = self._work, execution.gradient_checkpointing
        tokens = execution.micro_batch_size * work.job.data.max_length / execution.layout.cp
        products, weights, inputs = self._seconds_of_products(tokens)
        attention = self._attention(execution)
        moved = self._device.bytes_moved(tokens * work.saved_whole) * self._fused
        between = _FORWARD_PASSES * moved
        forward = products + attention + between
        backward = inputs + weights + _ATTENTION_BACKWARD * attention + _BACKWARD_PASSES * moved
        kept = execution.attn_implementation == KEPT_BY_SELECTIVE
        again = {"none": 0.0, "selective": between + (0.0 if kept else attention), "full": forward}[recompute]
        slices, ring, ring_back = _talking(work, tokens, attention)
        looped = recompute == "full" or (recompute == "selective" and not kept)
        once_more = slices * (0.0 if recompute == "none" else _SLICES_AGAIN) + (ring if looped else 0.0)
        operators = self._operators * (2 if recompute != "none" else 1)
        return Pieces(
            forward=_launched(work, forward, operators=self._operators, talking=slices + ring),
            backward=_launched(
                work, backward + again, operators=operators, talking=slices + ring + once_more + ring_back
            ),
            weights=weights,
            loss=_loss(work, execution, self._device),
        )

    def _seconds_of_products(self, tokens: float) -> tuple[float, float, float]:
        """Of the mean block: forward, gradients of weights, gradients of inputs."""
        forward = weights = inputs = 0.0
        for count, product in self._products:
            ahead, own, back = product.seconds(tokens)
            forward += count * ahead
            weights += count * own
            inputs += count * back
        layers = self._work.model.num_layers
        return forward / layers, weights / layers, inputs / layers

    def _attention(self, execution: Execution) -> float:
        work, layout, size = self._work, execution.layout, execution.micro_batch_size
        seconds = sum(_kernel_seconds(work, self._device, execution))
        if execution.attn_implementation == "eager":
            moved = _EAGER_SCORE_PASSES * score_bytes(work, size)
            seconds += self._device.bytes_moved(moved / layout.tp / layout.cp)
        return seconds


def _kernel_seconds(work: Work, device: Device, execution: Execution) -> tuple[float, float]:
    """Of attention's products in one forward of a block, on one rank: over scores without a mask, and with one."""
    ranks = execution.layout.tp * execution.layout.cp
    plain, masked = (2.0 * execution.micro_batch_size * one / ranks for one in multiplications(work))
    kind = execution.attn_implementation
    return device.attention(plain, kind=kind), device.attention(masked, kind=MASKED_ATTENTION)


def _operators(work: Work) -> int:
    """Launched in one forward of a block."""
    each = _OPERATORS_PER_ADAPTER + (_OPERATORS_PER_NORM if work.inventory.dora else 0)
    return _OPERATORS_PER_BLOCK + each * len(work.inventory.adapted)


def _launched(work: Work, seconds: float, *, operators: float, talking: float = 0.0) -> Piece:
    """A GPU waits where the host launches more slowly than it computes."""
    host = operators * HOST_SECONDS_PER_OPERATOR
    if work.cluster.gpu.kind == "cpu":
        return Piece(seconds + host + talking, seconds, talking)
    if work.execution.compile:
        host *= COMPILED_OPERATORS_SHARE
    return Piece(max(seconds, host) + talking, seconds, talking)


def _by_shape(work: Work) -> Iterator[tuple[ModelShape, int, Matrix]]:
    """Matrices that take equally long, with how many there are in a block of a kind: most have four kinds of seven."""
    for kind in work.model.kinds:
        found: dict[object, list[Matrix]] = {}
        for m in kind.matrices:
            held = work.inventory
            kind_of = (held.trained(m.name), m.name in held.adapted, m.name in held.bare)
            found.setdefault((m.rows, m.columns, m.count, m.run, SLICED_BY[m.reads], *kind_of), []).append(m)
        yield from ((kind, len(alike), alike[0]) for alike in found.values())


class _Product:
    """A matrix, or several in the place of one, times the tokens that reach it, and the gradients of that."""

    def __init__(self, work: Work, matrix: Matrix) -> None:
        tp, rows, columns = work.execution.layout.tp, matrix.rows, matrix.columns
        by_rows = SLICED_BY[matrix.reads] == "rows"
        self._rows, self._columns = (rows / tp, columns) if by_rows else (rows, columns / tp)
        self._device = device = device_of(work)
        self._run, self._count = matrix.run, matrix.count
        self._trained = work.inventory.trained(matrix.name)
        adapters = work.job.adapters if matrix.name in work.inventory.adapted else None
        self._rank = None if adapters is None else adapters.r
        self._around = _adapter_bytes(work, rows=self._rows, columns=self._columns)
        bare = matrix.name in work.inventory.bare
        self._remade, self._halves = (
            _remade(work, matrix, rows=self._rows, columns=self._columns) if bare else (0.0, 0.0)
        )
        # The whole gradient of a weight that is made anew, and of it those of both halves.
        self._whole_gradient = float(self._trained) + float(bare)
        dequantised = work.job.method == "qlora" and matrix.adaptable
        self._written_out = device.bytes_moved(_DEQUANTISED_BYTES * self._rows * self._columns) if dequantised else 0.0
        self._normed, self._again = 0.0, 0
        if adapters is not None and work.inventory.dora:
            norms = norm_seconds(work, device, rows=self._rows, columns=self._columns, rank=adapters.r)
            self._normed, self._again = norms + self._written_out, products_again(work)

    def seconds(self, tokens: float) -> tuple[float, float, float]:
        """All `count` matrices: forward, gradient of the weight, gradient of the input; frozen ones have no second."""
        rows, columns, product = self._rows, self._columns, self._device.product
        # Tokens spread evenly over experts.
        tokens = max(1.0, tokens * self._run / self._count)
        # A product takes as long whichever of its dims is which.
        forward = inputs = product(tokens, rows, columns)
        weights = forward * self._whole_gradient
        if self._rank is not None:
            halves = product(tokens, self._rank, columns) + product(tokens, rows, self._rank)
            around = self._device.bytes_moved(tokens * self._around) + self._again * forward
            forward, weights, inputs = forward + halves + around, weights + halves, inputs + halves + around
            forward += self._normed
        forward, weights = forward + self._remade, weights + 2 * self._halves
        count, written_out = self._count, self._written_out
        return count * (forward + written_out), count * weights, count * (inputs + written_out)


def _remade(work: Work, matrix: Matrix, *, rows: float, columns: float) -> tuple[float, float]:
    """Seconds of one expert's weight made of a bare parameter and its adapter, and of its halves' product alone."""
    device, adapters = device_of(work), work.job.adapters
    halves = device.product(rows, columns, adapter_rank(matrix, adapters, work.model) if adapters else 0)
    return halves + device.bytes_moved(_REMADE_PASSES * rows * columns * work.types.compute), halves


def _adapter_bytes(work: Work, *, rows: float, columns: float) -> float:
    """What one adapter moves in forward for each token, beside its two products."""
    drops = work.job.adapters is not None and work.job.adapters.lora_dropout > 0
    read = _ADAPTER_INPUT_BYTES + (_ADAPTER_DROPOUT_BYTES if drops else 0)
    fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
    return fused * (read * columns + _ADAPTER_OUTPUT_BYTES * rows)


def _talking(work: Work, tokens: float, attention: float) -> tuple[float, float, float]:
    """Seconds a pass waits for messages inside a block: of tensor parallelism, of the ring of context parallelism, and
    how much longer the ring takes in backward, which sends gradients along."""
    layout, model = work.execution.layout, work.model
    stream = tokens * model.hidden_size * work.types.compute
    tensor = _TENSOR_COLLECTIVES * group_of(work.cluster, layout, "tp").gather(stream)
    if layout.cp == 1:
        return tensor, 0.0, 0.0
    widths = model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim)) / layout.tp
    once = group_of(work.cluster, layout, "cp").message(tokens * widths * work.types.compute) * (layout.cp - 1)
    forward = max(0.0, once - attention)
    backward = max(0.0, 2 * once - _ATTENTION_BACKWARD * attention)
    return tensor, forward, backward - forward


def _loss(work: Work, execution: Execution, device: Device) -> Piece:
    """Head and loss, forward and backward: three products and passes over the logits, in turn for each chunk."""
    layout = execution.layout
    tokens = execution.micro_batch_size * work.job.data.max_length / layout.cp
    vocab, width = work.model.vocab_size, work.model.embedding_width
    at_once = min(tokens, work.head_tokens_of(execution))
    chunks = tokens / at_once
    sliced = vocab / layout.tp
    products = device.product(at_once, sliced, width) * (2 if chunks == 1 else 3)  # chunks are computed again
    if work.inventory.trained(work.inventory.head_name):
        products += device.product(sliced, width, at_once)
    fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
    passes = device.bytes_moved(at_once * vocab * FLOAT32_BYTES * _LOGIT_PASSES) * fused
    # Each rank has its part of the vocabulary's logits, which are gathered as often as they are computed.
    gathers = chunks * (1 if chunks == 1 else 2)
    talking = gathers * group_of(work.cluster, layout, "tp").gather(at_once * vocab * work.types.compute)
    return _launched(work, chunks * (products + passes), operators=_OPERATORS_PER_LOSS * chunks, talking=talking)


def multiplications(work: Work) -> tuple[float, float]:
    """Multiplications of the mean block's attention in the forward of one sequence, on all ranks that share it.

    Causal attention counts half the scores, a window as many as it is long. `sdpa` with a mask (windows, packed
    documents) and eager attention compute all of them.

    Returns:
        Those without a mask, and those with one.
    """
    model, length, kind = work.model, work.job.data.max_length, work.execution.attn_implementation
    seen = min(length, model.sliding_window or length)
    windowed = 0 if seen == length else model.num_layers if model.windowed_layers is None else model.windowed_layers
    share = windowed / model.num_layers
    widths = length * model.num_attention_heads * (model.head_dim + (model.value_head_dim or model.head_dim))
    whole, causal, behind = widths * length, widths * _mean_of(length, length), widths * _mean_of(seen, length)
    if kind == "eager":
        return whole, 0.0
    if kind not in MASKED:
        return causal + (behind - causal) * share, 0.0
    masked = 1.0 if work.job.data.packing else share
    return causal * (1 - masked), whole * masked


def score_bytes(work: Work, size: int) -> float:
    """Of the scores of one block and so many sequences, in float32."""
    tokens = size * work.job.data.max_length
    return tokens * work.job.data.max_length * work.model.num_attention_heads * FLOAT32_BYTES


def _mean_of(seen: int, length: int) -> float:
    """Keys that the mean token of a causal sequence sees, of the last so many."""
    return seen - seen * (seen - 1) / (2 * length)
