"""Seconds of the pieces that a step is made of: the mean block's forward and backward, the loss, the optimizer.

A piece is what one rank does for one micro-batch: slices of matrices under tensor parallelism, a slice of each sequence
under context parallelism, with the messages that such slices wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardwise.plan.kernels import COMPILED_OPERATORS_SHARE, COMPILED_PASSES_SHARE, HOST_SECONDS_PER_OPERATOR, Device
from shardwise.plan.links import group_of
from shardwise.plan.types import FLOAT32_BYTES
from shardwise.plan.work import Work
from shardwise.spec.model import SLICED_BY, Matrix, ModelShape
from shardwise.spec.targets import adapter_rank

#: Operators of a block's forward in eager PyTorch (norms and rotary embedding written out), and those of one adapter.
_OPERATORS_PER_BLOCK = 45
_OPERATORS_PER_ADAPTER = 8
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


class Piece(NamedTuple):
    """One stretch of a rank's time.

    Attributes:
        seconds: how long it takes.
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
    """A micro-batch's pieces.

    Attributes:
        forward: the mean block's.
        backward: the mean block's, with what is computed again.
        weights: the part of `backward` that makes the gradients of weights, on which nobody waits.
        loss: head and loss, forward and backward.
    """

    forward: Piece
    backward: Piece
    weights: float
    loss: Piece


def device_of(work: Work) -> Device:
    """The rank's GPU, in the type that it computes in."""
    return Device(gpu=work.cluster.gpu, compute=work.types.compute_name, element_bytes=work.types.compute)


def pieces_of(work: Work) -> Pieces:
    """The pieces of one micro-batch on one rank."""
    block = _Block(work)
    execution = work.execution
    operators = _OPERATORS_PER_BLOCK + _OPERATORS_PER_ADAPTER * len(work.inventory.adapted)
    again = {"none": 0.0, "selective": block.between, "full": block.forward}[execution.gradient_checkpointing]
    recomputes = execution.gradient_checkpointing != "none"
    talking = block.talking
    return Pieces(
        forward=_launched(work, block.forward, operators=operators, talking=talking),
        backward=_launched(
            work,
            block.backward + again,
            operators=operators * (2 if recomputes else 1),
            talking=talking * (2 if execution.gradient_checkpointing == "full" else 1) + block.ring,
        ),
        weights=block.weights,
        loss=_loss(work, block.device),
    )


class _Block:
    """Seconds of the mean block: products, attention, and the operators between them."""

    def __init__(self, work: Work) -> None:
        layout, execution = work.execution.layout, work.execution
        self.device = device = device_of(work)
        self.tokens = execution.micro_batch_size * work.job.data.max_length / layout.cp
        products, self.weights, inputs = _products(work, device, self.tokens)
        attention = device.attention(_attention_flops(work) / layout.tp / layout.cp, kind=execution.attn_implementation)
        if execution.attn_implementation == "eager":
            attention += device.bytes_moved(_EAGER_SCORE_PASSES * _score_bytes(work) / layout.tp / layout.cp)
        fused = COMPILED_PASSES_SHARE if execution.compile else 1.0
        moved = device.bytes_moved(self.tokens * work.saved_whole) * fused
        self.between = _FORWARD_PASSES * moved
        self.forward = products + attention + self.between
        self.backward = inputs + self.weights + _ATTENTION_BACKWARD * attention + _BACKWARD_PASSES * moved
        self.talking, self.ring = _talking(work, self.tokens, attention)


def _launched(work: Work, seconds: float, *, operators: float, talking: float = 0.0) -> Piece:
    """A GPU waits where the host launches more slowly than it computes."""
    host = operators * HOST_SECONDS_PER_OPERATOR
    if work.cluster.gpu.kind == "cpu":
        return Piece(seconds + host + talking, seconds, talking)
    if work.execution.compile:
        host *= COMPILED_OPERATORS_SHARE
    return Piece(max(seconds, host) + talking, seconds, talking)


def _products(work: Work, device: Device, tokens: float) -> tuple[float, float, float]:
    """Seconds of the mean block's products: forward, gradients of weights, gradients of inputs."""
    forward = weights = inputs = 0.0
    for kind in work.model.kinds:
        for count, one in _by_shape(kind, work):
            product = _product_seconds(work, device, one, tokens)
            forward += kind.num_layers * count * product[0]
            weights += kind.num_layers * count * product[1]
            inputs += kind.num_layers * count * product[2]
    layers = work.model.num_layers
    return forward / layers, weights / layers, inputs / layers


def _by_shape(kind: ModelShape, work: Work) -> Iterator[tuple[int, Matrix]]:
    """Matrices that take equally long, with how many there are: most blocks have four kinds of seven."""
    found: dict[object, list[Matrix]] = {}
    for m in kind.matrices:
        held = work.inventory
        kind_of = (held.trained(m.name), m.name in held.adapted, m.name in held.bare)
        found.setdefault((m.rows, m.columns, m.count, m.run, SLICED_BY[m.reads], *kind_of), []).append(m)
    return ((len(alike), alike[0]) for alike in found.values())


def _product_seconds(work: Work, device: Device, matrix: Matrix, tokens: float) -> tuple[float, float, float]:
    """All `count` matrices: forward, gradient of the weight, gradient of the input; frozen ones have no second."""
    tp, count = work.execution.layout.tp, matrix.count
    rows, columns = matrix.rows, matrix.columns
    rows, columns = (rows / tp, columns) if SLICED_BY[matrix.reads] == "rows" else (rows, columns / tp)
    # Tokens spread evenly over experts.
    tokens = max(1.0, tokens * matrix.run / count)
    forward = device.product(tokens, rows, columns)
    weights = device.product(rows, columns, tokens) if work.inventory.trained(matrix.name) else 0.0
    inputs = device.product(tokens, columns, rows)
    if matrix.name in work.inventory.adapted:
        r = work.job.adapters.r if work.job.adapters else 0
        halves = device.product(tokens, r, columns) + device.product(tokens, rows, r)
        around = device.bytes_moved(_adapter_bytes(work, tokens, rows=rows, columns=columns))
        forward += halves + around
        weights += halves
        inputs += halves + around
    if matrix.name in work.inventory.bare:
        remade, halves = _remade(work, device, matrix, rows=rows, columns=columns)
        forward += remade
        # The whole weight's gradient, and of it those of both halves.
        weights += device.product(rows, columns, tokens) + 2 * halves
    if work.job.method == "qlora" and matrix.adaptable:
        written_out = device.bytes_moved(_DEQUANTISED_BYTES * rows * columns)
        forward += written_out
        inputs += written_out
    return count * forward, count * weights, count * inputs


def _remade(work: Work, device: Device, matrix: Matrix, *, rows: float, columns: float) -> tuple[float, float]:
    """Seconds of one expert's weight made of a bare parameter and its adapter, and of its halves' product alone."""
    r = adapter_rank(matrix, work.job.adapters, work.model) if work.job.adapters else 0
    halves = device.product(rows, columns, r)
    return halves + device.bytes_moved(_REMADE_PASSES * rows * columns * work.types.compute), halves


def _adapter_bytes(work: Work, tokens: float, *, rows: float, columns: float) -> float:
    """What one adapter moves in forward beside its two products."""
    drops = work.job.adapters is not None and work.job.adapters.lora_dropout > 0
    read = _ADAPTER_INPUT_BYTES + (_ADAPTER_DROPOUT_BYTES if drops else 0)
    fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
    return tokens * fused * (read * columns + _ADAPTER_OUTPUT_BYTES * rows)


def _attention_flops(work: Work) -> float:
    """Forward FLOPs of one block's scores and values over causal sequences, of all ranks that share them."""
    model, length = work.model, work.job.data.max_length
    seen = min(length, model.sliding_window or length)
    average = seen - seen * (seen - 1) / (2 * length)
    eager = work.execution.attn_implementation == "eager"
    if eager:
        average = length
    elif model.windowed_layers is not None:
        whole = length - length * (length - 1) / (2 * length)
        average = whole + (average - whole) * model.windowed_layers / model.num_layers
    widths = model.head_dim + (model.value_head_dim or model.head_dim)
    return 2.0 * work.execution.micro_batch_size * length * average * model.num_attention_heads * widths


def _score_bytes(work: Work) -> float:
    tokens = work.execution.micro_batch_size * work.job.data.max_length
    return tokens * work.job.data.max_length * work.model.num_attention_heads * FLOAT32_BYTES


def _talking(work: Work, tokens: float, attention: float) -> tuple[float, float]:
    """Seconds a pass waits for messages inside a block; and how much longer the ring takes in backward.

    Tensor parallelism gathers the stream before each group of matrices and scatters sums behind it. In the ring of
    context parallelism keys and values go round while attention works on those that are there; backward sends their
    gradients along.
    """
    layout, model = work.execution.layout, work.model
    stream = tokens * model.hidden_size * work.types.compute
    tensor = _TENSOR_COLLECTIVES * group_of(work.cluster, layout, "tp").gather(stream)
    if layout.cp == 1:
        return tensor, 0.0
    widths = model.num_key_value_heads * (model.head_dim + (model.value_head_dim or model.head_dim)) / layout.tp
    once = group_of(work.cluster, layout, "cp").message(tokens * widths * work.types.compute) * (layout.cp - 1)
    forward = max(0.0, once - attention)
    backward = max(0.0, 2 * once - _ATTENTION_BACKWARD * attention)
    return tensor + forward, backward - forward


def _loss(work: Work, device: Device) -> Piece:
    """Head and loss, forward and backward: three products and passes over the logits, in turn for each chunk."""
    layout = work.execution.layout
    tokens = work.execution.micro_batch_size * work.job.data.max_length / layout.cp
    vocab, width = work.model.vocab_size, work.model.embedding_width
    at_once = min(tokens, work.head_tokens)
    chunks = tokens / at_once
    sliced = vocab / layout.tp
    products = device.product(at_once, sliced, width) * (2 if chunks == 1 else 3)  # chunks are computed again
    if work.inventory.trained("embedding" if work.model.tied else "head"):
        products += device.product(sliced, width, at_once)
    fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
    passes = device.bytes_moved(at_once * vocab * FLOAT32_BYTES * _LOGIT_PASSES) * fused
    talking = group_of(work.cluster, layout, "tp").gather(tokens * vocab * work.types.compute)
    return _launched(work, chunks * (products + passes), operators=_OPERATORS_PER_LOSS * chunks, talking=talking)
