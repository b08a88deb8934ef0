"""What DoRA does beside LoRA in each forward: the norms of the adapted matrix's rows, whatever the tokens.

PEFT sends an identity through A and B for their product, in operators that FSDP's hooks see; adds that, scaled, to the
weight; and takes the norms as constants, so that backward has nothing of it (Liu et al., 2024, section 4.3).
"""

from __future__ import annotations

from shardwise.plan.memory.work import Work
from shardwise.plan.time.kernels import COMPILED_PASSES_SHARE, Device

#: Of each element of the matrix: the product is scaled (read, written), added to the weight (both read, one written),
#: and the norm reads the sum.
_PASSES = 6


def norm_seconds(work: Work, device: Device, *, rows: float, columns: float, rank: int) -> float:
    """Seconds of the norms of one matrix [rows, columns], of the slice of it that a rank has."""
    products = device.product(columns, rank, columns) + device.product(columns, rows, rank)
    fused = COMPILED_PASSES_SHARE if work.execution.compile else 1.0
    return products + device.bytes_moved(fused * norm_bytes(work, rows=rows, columns=columns))


def norm_bytes(work: Work, *, rows: float, columns: float) -> float:
    """Bytes that go through memory beside the two products, in the adapters' type where that is wider."""
    compute, wide = work.types.compute, work.setting.adapter_bytes
    cast = compute + wide if wide != compute else 0
    identity = wide + cast
    return identity * columns**2 + (_PASSES * wide + 2 * cast) * rows * columns


def products_again(work: Work) -> int:
    """Whole products of the frozen matrix beside its own: with dropout, the magnitudes scale one of what is left."""
    adapters = work.job.adapters
    return int(work.inventory.dora and adapters is not None and adapters.lora_dropout > 0)
