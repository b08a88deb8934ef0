"""Tensor parallelism: collectives that a block waits for, and what is not sliced."""

from shardwise.plan.rates import Device, group_of
from shardwise.plan.work import Work

#: Tensor-parallel collectives in one pass of a block: before and after attention, and the MLP.
_TENSOR_COLLECTIVES = 4
#: Passes over the whole stream beside each, where a micro-batch has several rows: parts of rows are
#: put in order behind a gather and before a sum (`parallel/tensor/collectives.py`: read and
#: written).
_ORDERING_PASSES = 2
#: Passes of adding up two gradients of the stream.
_SUM_PASSES = 3
#: Times as long as alone such a collective takes inside a step on GPUs, beside those of sharded
#: weights: fitted to Qwen3-32B of torchtitan-commits-2026 under tp 4 and 8. Slower asynchronous
#: launches and uneven ranks are in it.
_IN_A_STEP = 2.0


def slice_seconds(work: Work, tokens: float, device: Device) -> float:
    """Seconds a pass of a block waits for slices of the stream."""
    if work.execution.layout.tp == 1:
        return 0.0
    stream = tokens * work.model.hidden_size * work.types.compute
    group = group_of(work.cluster, work.execution.layout, "tp")
    waited = _TENSOR_COLLECTIVES / 2 * (group.gather(stream) + group.scatter(stream))
    if work.cluster.gpu.kind == "cpu":
        return waited
    several = work.rows > 1
    ordered = device.bytes_moved(_TENSOR_COLLECTIVES * _ORDERING_PASSES * stream) if several else 0.0
    return (1.0 if work.execution.compile else _IN_A_STEP) * waited + ordered


def whole_gradients(work: Work, tokens: float, device: Device) -> float:
    """Seconds of a block's backward in which a rank adds up gradients of the whole stream, one from
    each slice of the matrices that read it; unsliced, a block's own bytes have them."""
    tp = work.execution.layout.tp
    if tp == 1 or work.cluster.gpu.kind == "cpu":
        return 0.0
    readers = [sum(m.reads == reads for m in work.block.matrices) for reads in ("attention_input", "mlp_input")]
    sums = sum(max(0, count - 1) for count in readers)
    stream = tokens * work.model.hidden_size * work.types.compute
    return device.bytes_moved(_SUM_PASSES * sums * stream * (1 - 1 / tp))
