"""Seconds of a block's matrix products, with the adapters beside them, and of attention's."""

from collections.abc import Iterator

from shardwise.plan.costs.context import compared
from shardwise.plan.rates import ATTENTION_BACKWARD, MASKED_ATTENTION, Device
from shardwise.plan.work import FLOAT32_BYTES, Work, made_again
from shardwise.spec.adapters.targets import adapter_rank
from shardwise.spec.model.shape import SLICED_BY, Matrix
from shardwise.spec.support.attention import MASKED
from shardwise.spec.support.rows import in_nf4
from shardwise.spec.support.sdpa import sdpa_kernel

#: Bytes that one adapter moves in forward, and about as many in backward, for each element of its
#: input (read once more; dropped) and of its output (made, scaled, added). Copies of another type
#: are among the saved bytes.
_ADAPTER_INPUT_BYTES, _ADAPTER_DROPOUT_BYTES, _ADAPTER_OUTPUT_BYTES = 4, 9, 10
#: 4-bit weights are written out in the compute type before each product, forward and backward:
#: bytes per element, with what their kernel loses.
_DEQUANTISED_BYTES = 5.0
#: A bare parameter plus its adapter's product is made anew at each use: one read, one write.
_REMADE_PASSES = 2
#: DoRA's norms, for each element of the matrix: the product is scaled (read, written), added to the
#: weight (both read, one written), and the norm reads the sum.
_NORM_PASSES = 6
#: Compiled, operators between products are fused: this share of their passes over memory is left.
_COMPILED_PASSES = 0.4

#: Tokens of an expert at which products of stacked experts, one kernel for all, take twice as long
#: as plain ones on an H100, and the peak that it is of: what such a kernel loses is time. Fitted to
#: the rows of prime-rl-bench on H100 and H200 with 1024 tokens for each expert, the fewest; those
#: of INTELLECT-3, with four times as many, are the check.
_GROUPED_HALF, _OF_PEAK, _LEAST_SEEN = 3500, 989.4e12, 1024


def seconds_of_products(work: Work, device: Device, tokens: float) -> tuple[float, float, float, float]:
    """Of the mean block: forward, gradients of weights, of inputs; of forward what is remade."""
    forward = weights = inputs = again = 0.0
    for count, matrix in work.of_job("matrices by shape", lambda: tuple(_by_shape(work))):
        ahead, own, back = _product(work, device, matrix, tokens)
        forward += count * ahead
        weights += count * own
        inputs += count * back
        again += count * ahead * made_again(matrix)
    layers = work.model.num_layers
    return forward / layers, weights / layers, inputs / layers, again / layers


def fused_share(work: Work) -> float:
    """Share of the passes over memory between products that compilation leaves."""
    return _COMPILED_PASSES if work.execution.compile else 1.0


def _by_shape(work: Work) -> Iterator[tuple[int, Matrix]]:
    """Matrices that take equally long, with their number: most blocks have four kinds of seven."""
    for kind in work.model.kinds:
        found: dict[object, list[Matrix]] = {}
        for m in kind.matrices:
            held = work.inventory
            kind_of = (held.trained(m.name), m.name in held.adapted, m.name in held.bare)
            found.setdefault((m.rows, m.columns, m.count, m.run, SLICED_BY.get(m.reads), *kind_of), []).append(m)
        yield from ((kind.num_layers * len(alike), alike[0]) for alike in found.values())


def _product(work: Work, device: Device, matrix: Matrix, tokens: float) -> tuple[float, float, float]:
    """All `count` matrices: forward, gradients of weight (none if frozen) and of input."""
    tp, held, adapters, product = work.execution.layout.tp, work.inventory, work.job.adapters, device.product
    by_rows = SLICED_BY.get(matrix.reads) == "rows"
    rows, columns = (matrix.rows / tp, matrix.columns) if by_rows else (matrix.rows, matrix.columns / tp)
    # Tokens spread evenly over experts.
    tokens = max(1.0, tokens * matrix.run / matrix.count)
    # A product takes as long whichever of its dims is which.
    forward = inputs = product(tokens, rows, columns) * (_grouped(device, tokens) if matrix.stacked else 1)
    bare = matrix.name in held.bare
    # The whole gradient of a weight that is made anew, and of it those of both halves.
    weights = forward * (float(held.trained(matrix.name)) + float(bare))
    dequantised = work.job.method == "qlora" and in_nf4(matrix, experts=work.job.quantises_experts)
    written_out = device.bytes_moved(_DEQUANTISED_BYTES * rows * columns) if dequantised else 0.0
    if adapters is not None and matrix.name in held.adapted:
        again = forward if held.dora and adapters.lora_dropout > 0 else 0.0  # magnitudes scale what dropout leaves
        halves = product(tokens, adapters.r, columns) + product(tokens, rows, adapters.r)
        around = device.bytes_moved(tokens * _adapter_bytes(work, rows=rows, columns=columns)) + again
        forward, weights, inputs = forward + halves + around, weights + halves, inputs + halves + around
        if held.dora:
            norms = _norm_seconds(work, device, rows=rows, columns=columns, rank=adapters.r)
            forward += norms + written_out
    if bare:
        halves = product(rows, columns, adapter_rank(matrix, adapters, work.model) if adapters else 0)
        forward += halves + device.bytes_moved(_REMADE_PASSES * rows * columns * work.types.compute)
        weights += 2 * halves
    count = matrix.count
    return count * (forward + written_out), count * weights, count * (inputs + written_out)


def _grouped(device: Device, tokens: float) -> float:
    """Times as long products of stacked experts take as plain ones, with so many tokens each."""
    lost = _GROUPED_HALF * device.peak / _OF_PEAK / max(tokens, _LEAST_SEEN)
    return 1 + lost if device.gpu.kind == "cuda" else 1.0


def _adapter_bytes(work: Work, *, rows: float, columns: float) -> float:
    """What one adapter moves in forward for each token, beside its two products."""
    drops = work.job.adapters is not None and work.job.adapters.lora_dropout > 0
    read = _ADAPTER_INPUT_BYTES + (_ADAPTER_DROPOUT_BYTES if drops else 0)
    return fused_share(work) * (read * columns + _ADAPTER_OUTPUT_BYTES * rows)


def _norm_seconds(work: Work, device: Device, *, rows: float, columns: float, rank: int) -> float:
    """Seconds of DoRA's norms of one matrix's rows, whatever the tokens (Liu et al., 2024, section
    4.3). PEFT sends an identity through A and B, adds the product, and detaches the norms."""
    products = device.product(columns, rank, columns) + device.product(columns, rows, rank)
    return products + device.bytes_moved(fused_share(work) * norm_bytes(work, rows=rows, columns=columns))


def norm_bytes(work: Work, *, rows: float, columns: float) -> float:
    """Bytes that DoRA's norms move beside the two products, in the adapters' type if wider."""
    compute, wide = work.types.compute, work.setting.adapter_bytes
    cast = compute + wide if wide != compute else 0
    identity = wide + cast
    return identity * columns**2 + (_NORM_PASSES * wide + 2 * cast) * rows * columns


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
