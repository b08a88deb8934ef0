"""Time of one optimizer step: blocks and collectives laid on the streams of one GPU, in the trainer's order.

Data-parallel ranks are alike, so one of them is the whole step. What overlaps here is what overlaps there: DDP reduces
a block's gradients while earlier blocks go backward; FSDP gathers one unit ahead and reduces one behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.plan.inventory import Unit
from shardwise.plan.kernels import (
    CONTENTION,
    COPY_PASSES,
    HOST_SECONDS_PER_OPERATOR,
    HOST_SECONDS_PER_UNIT,
    Device,
    group_of,
)
from shardwise.plan.streams import Streams
from shardwise.plan.types import FLOAT32_BYTES, REDUCTION_BYTES
from shardwise.plan.work import Work
from shardwise.spec.flops import model_flops_per_token
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import TimeForecast

COMPUTE, GATHER, REDUCE = "compute", "gather", "reduce"

#: Operators of a block's forward in eager PyTorch (norms and rotary embedding written out), and those of one adapter.
_OPERATORS_PER_BLOCK = 45
_OPERATORS_PER_ADAPTER = 8
_OPERATORS_PER_LOSS = 20
#: Passes over memory of the operators between the products: each saved byte is written and read, with temporaries.
_FORWARD_PASSES, _BACKWARD_PASSES = 2.5, 5.0
_ATTENTION_BACKWARD = 2.5
#: The optimizer reads weight, gradient and states and writes weight and states; clipping reads gradients twice.
_OPTIMIZER_PASSES, _CLIPPING_PASSES = 2.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Compute time of the pieces of a micro-batch: (wall seconds, seconds in which a kernel runs)."""

    forward: tuple[float, float]
    backward: tuple[float, float]
    loss: tuple[float, float]
    optimizer: tuple[float, float]


def forecast_time(work: Work, *, num_rows: int | None = None) -> TimeForecast:
    """Step time, throughput and utilisations of an execution; the whole run's where the number of rows is known."""
    device = _device(work)
    pieces = _pieces(work, device)
    micros = work.execution.gradient_accumulation_steps
    last = micro_batch(work, pieces, last=True)
    earlier = micro_batch(work, pieces, last=False) if micros > 1 else last
    step = (micros - 1) * earlier.end + last.end + pieces.optimizer[0]
    optimizer = pieces.optimizer[1]
    busy = (micros - 1) * earlier.busy_seconds(COMPUTE, GATHER, REDUCE) + last.busy_seconds(COMPUTE, GATHER, REDUCE)
    computing = (micros - 1) * earlier.busy_seconds(COMPUTE) + last.busy_seconds(COMPUTE)
    job, gpus = work.job, work.execution.layout.world_size
    tokens = job.train.global_batch_size * job.data.max_length
    flops = tokens * model_flops_per_token(work.model, length=job.data.max_length, lora=job.adapters)
    steps = num_steps(work, num_rows=num_rows)
    return TimeForecast(
        step_seconds=step,
        tokens_per_second=tokens / step,
        mfu=min(1.0, flops / (step * gpus * device.peak)),
        gpu_utilization=min(1.0, (busy + optimizer) / step),
        compute_utilization=min(1.0, (computing + optimizer) / step),
        total_seconds=None if steps is None else steps * step,
    )


def num_steps(work: Work, *, num_rows: int | None) -> int | None:
    """Optimizer steps of the whole run: `max_steps`, or the epochs over the rows; None where neither is known."""
    train = work.job.train
    if train.max_steps is not None:
        return train.max_steps
    if num_rows is None:
        return None
    per_epoch = -(-num_rows // train.global_batch_size)
    # Rounded first, so that three tenths of ten steps are three and not four.
    return max(1, math.ceil(round(per_epoch * train.num_train_epochs, 6)))


def micro_batch(work: Work, pieces: Seconds, *, last: bool) -> Streams:
    """The schedule of one micro-batch; replicated gradients are reduced during the last one only."""
    if work.sharded:
        return _sharded(work, pieces)
    return _replicated(work, pieces, reduces=last and work.replicated)


def _replicated(work: Work, pieces: Seconds, *, reduces: bool) -> Streams:
    streams, blocks = Streams(), work.model.num_layers
    group = group_of(work.cluster, work.execution.layout, "dp_replicate")
    width = work.types.trainable
    bucket = group.all_reduce(_mean(work, lambda unit: unit.trained_elements) * width)
    forward, backward, loss = pieces.forward, pieces.backward, pieces.loss
    if reduces:
        backward = (backward[0] + CONTENTION * min(bucket, backward[0]), backward[1])
    streams.add(COMPUTE, forward[0] * blocks, name="forward", busy=forward[1] * blocks)
    streams.add(COMPUTE, loss[0], name="loss", busy=loss[1])
    for index in reversed(range(blocks)):
        done = _compute(streams, backward, name=f"backward of layer {index}", after=())
        if reduces:
            streams.add(REDUCE, bucket, name=f"reduce layer {index}", after=(done,))
    if reduces:
        rest = group.all_reduce(work.inventory.root.trained_elements * width)
        streams.add(REDUCE, rest, name="reduce embedding and head", after=(len(streams.tasks) - 1,))
    return streams


def _sharded(work: Work, pieces: Seconds) -> Streams:
    streams, blocks, layout = Streams(), work.model.num_layers, work.execution.layout
    unit = _unit_seconds(
        work,
        elements=_mean(work, lambda unit: unit.elements),
        trained=_mean(work, lambda unit: unit.trained_elements),
    )
    rest = _unit_seconds(work, elements=work.inventory.root.elements, trained=work.inventory.root.trained_elements)
    forward = _beside(pieces.forward, copying=unit.copy_out, talking=unit.gather)
    again = unit.gather if layout.reshard_after_forward else 0.0
    copying = unit.copy_in + (unit.copy_out if again else 0.0)
    backward = _beside(pieces.backward, copying=copying, talking=again + unit.reduce)
    done = [streams.add(GATHER, rest.gather, name="gather embedding and head")]
    for index in range(blocks):
        # One unit ahead: a gather starts when the block before the one at work has freed its weights.
        gathered = streams.add(GATHER, unit.gather, name=f"gather layer {index}", after=done[-2:-1])
        done.append(_compute(streams, forward, name=f"forward of layer {index}", after=(gathered, done[-1])))
    done.append(_compute(streams, pieces.loss, name="loss", after=done[-1:]))
    for index in reversed(range(blocks)):
        needs = done[-1:]
        if again:
            needs = [*needs, streams.add(GATHER, again, name=f"gather layer {index} again", after=done[-2:-1])]
        done.append(_compute(streams, backward, name=f"backward of layer {index}", after=needs))
        streams.add(REDUCE, unit.reduce, name=f"reduce layer {index}", after=done[-1:])
    streams.add(REDUCE, rest.reduce, name="reduce embedding and head", after=done[-1:])
    return streams


@dataclass(frozen=True, kw_only=True)
class UnitSeconds:
    """Time to move one sharded unit: collectives, and copies out of and into their buffers."""

    gather: float
    reduce: float
    copy_out: float
    copy_in: float


def _mean(work: Work, of: Callable[[Unit], float]) -> float:
    """A number of the mean block: times are affine in bytes, so that all blocks together come out right."""
    return work.inventory.over_blocks(of) / work.model.num_layers


def _unit_seconds(work: Work, *, elements: float, trained: float) -> UnitSeconds:
    layout, device = work.execution.layout, _device(work)
    shard = group_of(work.cluster, layout, "dp_shard")
    replicate = group_of(work.cluster, layout, "dp_replicate")
    gathered, reduced = elements * work.types.compute, trained * REDUCTION_BYTES
    reduce = shard.gather(reduced) + replicate.all_reduce(reduced / shard.size) if reduced else 0.0
    return UnitSeconds(
        gather=shard.gather(gathered),
        reduce=reduce,
        copy_out=device.bytes_moved(COPY_PASSES * gathered),
        copy_in=device.bytes_moved(COPY_PASSES * reduced),
    )


def _beside(piece: tuple[float, float], *, copying: float, talking: float) -> tuple[float, float]:
    """A piece of computation inside FSDP's hooks, with collectives running beside it."""
    extra = copying + CONTENTION * min(talking, piece[0])
    return piece[0] + extra + HOST_SECONDS_PER_UNIT, piece[1] + extra


def _compute(streams: Streams, seconds: tuple[float, float], *, name: str, after: Iterable[int]) -> int:
    return streams.add(COMPUTE, seconds[0], name=name, after=after, busy=seconds[1])


def _device(work: Work) -> Device:
    return Device(gpu=work.cluster.gpu, compute=work.types.compute_name, element_bytes=work.types.compute)


def _pieces(work: Work, device: Device) -> Seconds:
    forward_products, backward_products = _products(work, device)
    attention = device.attention(_attention_flops(work))
    moved = device.bytes_moved(work.tokens * work.saved_whole)
    again = _recomputed_share(work, forward_products, attention)
    operators = _OPERATORS_PER_BLOCK + _OPERATORS_PER_ADAPTER * len(work.inventory.adapted)
    forward = forward_products + attention + _FORWARD_PASSES * moved
    backward = backward_products + _ATTENTION_BACKWARD * attention + _BACKWARD_PASSES * moved
    recomputes = work.execution.gradient_checkpointing != "none"
    if recomputes:
        backward += again + _FORWARD_PASSES * moved
    return Seconds(
        forward=_launched(forward, operators=operators, device=device),
        backward=_launched(backward, operators=operators * (2 if recomputes else 1), device=device),
        loss=_launched(_loss_seconds(work, device), operators=_OPERATORS_PER_LOSS, device=device),
        optimizer=_launched(_optimizer_seconds(work, device), operators=_OPERATORS_PER_LOSS, device=device),
    )


def _launched(seconds: float, *, operators: int, device: Device) -> tuple[float, float]:
    """A GPU waits where the host launches more slowly than it computes."""
    if device.gpu.kind == "cpu":
        return seconds + operators * HOST_SECONDS_PER_OPERATOR, seconds
    return max(seconds, operators * HOST_SECONDS_PER_OPERATOR), seconds


def _products(work: Work, device: Device) -> tuple[float, float]:
    """Seconds of the mean block's matrix products, forward and backward."""
    kinds = [(kind.num_layers, _products_of(work, kind, device)) for kind in work.model.kinds]
    if len(kinds) == 1:
        return kinds[0][1]
    forward = sum(count * of_one[0] for count, of_one in kinds)
    backward = sum(count * of_one[1] for count, of_one in kinds)
    return forward / work.model.num_layers, backward / work.model.num_layers


def _products_of(work: Work, kind: ModelShape, device: Device) -> tuple[float, float]:
    """Those of one block of a kind; frozen matrices need no gradient of their own."""
    forward = backward = 0.0
    r = work.job.adapters.r if work.job.adapters else 0
    for matrix in kind.matrices:
        rows, columns, count = matrix.rows, matrix.columns, matrix.count
        # Tokens spread evenly over experts.
        tokens = max(1, work.tokens * matrix.run // count)
        forward += count * device.product(tokens, rows, columns)
        backward += count * device.product(tokens, columns, rows)
        if work.inventory.trained(matrix.name):
            backward += count * device.product(rows, columns, tokens)
        if matrix.name in work.inventory.adapted:
            halves = device.product(tokens, r, columns) + device.product(tokens, rows, r)
            forward += count * halves
            backward += count * 2 * halves
    return forward, backward


def _recomputed_share(work: Work, products: float, attention: float) -> float:
    """Full recompute does all of a block's forward again, selective all but products and attention."""
    return products + attention if work.execution.gradient_checkpointing == "full" else 0.0


def _attention_flops(work: Work) -> float:
    """Forward FLOPs of one block's scores and values over causal sequences."""
    model, length = work.model, work.job.data.max_length
    seen = min(length, model.sliding_window or length)
    average = seen - seen * (seen - 1) / (2 * length)
    if work.execution.attn_implementation == "eager":
        average = length
    if model.windowed_layers is not None and work.execution.attn_implementation != "eager":
        whole = length - length * (length - 1) / (2 * length)
        average = whole + (average - whole) * model.windowed_layers / model.num_layers
    widths = model.head_dim + (model.value_head_dim or model.head_dim)
    return 2.0 * work.tokens * average * model.num_attention_heads * widths


def _loss_seconds(work: Work, device: Device) -> float:
    """Head and loss, forward and backward: three products and passes over the logits, in turn for each chunk."""
    vocab, width = work.model.vocab_size, work.model.embedding_width
    chunks = -(-work.tokens // work.head_tokens)
    products = 2 * device.product(work.head_tokens, vocab, width)
    if chunks > 1:
        products += device.product(work.head_tokens, vocab, width)  # computed again in backward
    if work.inventory.trained("embedding" if work.model.tied else "head"):
        products += device.product(vocab, width, work.head_tokens)
    passes = device.bytes_moved(work.head_tokens * vocab * FLOAT32_BYTES * 8)
    return chunks * (products + passes)


def _optimizer_seconds(work: Work, device: Device) -> float:
    """Reading and writing weights, gradients and states of this rank's share; the host walks over all tensors."""
    trained = work.inventory.trained_elements / work.execution.layout.dp_shard
    states = 2 if work.execution.optimizer in ("adamw", "adamw_8bit") else 1
    moved = trained * work.types.trainable * ((2 + states) * _OPTIMIZER_PASSES + _CLIPPING_PASSES)
    return device.bytes_moved(moved)
