"""Attention's products and scores: how many multiplications, and their seconds."""

from shardwise.plan.costs.context import compared
from shardwise.plan.rates import ATTENTION_BACKWARD, MASKED_ATTENTION, Device
from shardwise.plan.work import FLOAT32_BYTES, Work
from shardwise.spec.support.attention import MASKED
from shardwise.spec.support.sdpa import sdpa_kernel

#: Attention written out: the scores go through memory this often in forward (scaled, masked,
#: softmax in float32, cast).
_EAGER_SCORE_PASSES = 6


def attention_seconds(work: Work, device: Device) -> tuple[float, float]:
    """Seconds of attention in the mean block, forward and backward."""
    execution = work.execution
    forward, backward = (sum(ways) for ways in zip(*kernel_seconds(work, device), strict=True))
    if kernel_of(work) in ("eager", "math"):
        scores = work.rows * work.job.data.max_length**2 * work.model.num_attention_heads
        moved = _EAGER_SCORE_PASSES * scores * FLOAT32_BYTES
        walked = device.bytes_moved(moved / execution.layout.ranks_per_row)
        forward, backward = forward + walked, backward + ATTENTION_BACKWARD * walked
    return forward, backward


def kernel_seconds(work: Work, device: Device) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of attention's products in a block, both ways, on one rank: without a mask, and with one."""
    execution = work.execution
    plain, masked = (2.0 * work.rows * one / execution.layout.ranks_per_row for one in multiplications(work))
    length, head = row_length(work), work.model.head_dim
    ran = device.attention(plain, kind=kernel_of(work), length=length, head=head)
    kind = "math" if masked and kernel_of(work, masked=True) == "math" else MASKED_ATTENTION
    return ran, device.attention(masked, kind=kind, length=length, head=head)


def kernel_of(work: Work, *, masked: bool = False) -> str:
    """The kernel of causal attention, or of attention with a mask: for `sdpa` PyTorch's choice."""
    model, kind, gpu = work.model, work.execution.attn_implementation, work.cluster.gpu
    if kind != "sdpa" or gpu.kind == "cpu":
        return kind
    heads = (model.head_dim, model.value_head_dim or model.head_dim)
    return sdpa_kernel(gpu, work.types.compute_name, heads=heads, masked=masked)


def row_length(work: Work) -> float:
    """Tokens of the rows that a kernel computes one by one."""
    row, kind = work.job.data.max_length, work.execution.attn_implementation
    return row if kind in MASKED or work.document is None else min(row, work.document)


def multiplications(work: Work) -> tuple[float, float]:
    """Multiplications of attention in the mean block's forward of a sequence, on all ranks: without
    and with a mask. Causal attention counts half the scores, a window its length; masked `sdpa`
    (windows, packed documents) and eager compute all. Others compute documents one by one."""
    model, row, kind = work.model, work.job.data.max_length, work.execution.attn_implementation
    length = row_length(work)
    seen = min(length, model.sliding_window or length)
    windowed = 0 if seen == length else model.num_layers if model.windowed_layers is None else model.windowed_layers
    share = windowed / model.num_layers
    widths = row * model.num_attention_heads * (model.head_dim + (model.value_head_dim or model.head_dim))
    whole, causal, behind = widths * length, widths * _mean_of(length, length), widths * _mean_of(seen, length)
    if kind == "eager":
        return whole, 0.0
    if kind not in MASKED:
        return causal + (behind - causal) * share, 0.0
    masked = 1.0 if work.job.data.packing else share
    return causal * (1 - masked), whole * compared(work) * masked


def _mean_of(seen: float, length: float) -> float:
    """Keys that the mean token of a causal sequence sees, of the last so many."""
    return seen - seen * (seen - 1) / (2 * length)
