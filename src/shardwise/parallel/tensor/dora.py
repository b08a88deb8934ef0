"""DoRA under tensor parallelism: norms of rows whose columns are sliced are reduced over ranks.

PEFT divides each magnitude by the norm of its row in `W + scaling * B A` and multiplies the outputs by it (Liu et al.,
2024). On slices of columns, outputs are partial sums, so only the norm has to be that of the whole row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import Placement, Shard

from shardwise.parallel.tensor.slices import Slicer


def slice_magnitudes(
    magnitudes: nn.Module, placements: Mapping[str, Placement], *, layer: nn.Module, slicer: Slicer
) -> None:
    """Slices the magnitudes of one adapter whose base layer, A and B are sliced already. `placements`: sharded with the
    matrix's rows, or replicated where its columns are sliced. `layer` is PEFT's."""
    peft: Any = layer
    reads = [peft.get_base_layer(), *peft.lora_A.values(), *peft.lora_B.values()]
    slicer.slice(magnitudes, placements, reads=reads)
    if not any(isinstance(placed, Shard) for placed in placements.values()):
        vars(magnitudes)["get_weight_norm"] = partial(_norm_of_cut_rows, slicer.mesh.get_group())


@torch.no_grad()
def _norm_of_cut_rows(
    group: ProcessGroup, weight: torch.Tensor, lora_weight: torch.Tensor, scaling: float, **_: Any
) -> torch.Tensor:
    """Norms [rows] of an adapted matrix of which each rank holds some columns [rows, local columns]."""
    norms = torch.linalg.vector_norm(weight + scaling * lora_weight, dim=1, dtype=torch.float32)
    squares = norms.square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt().to(weight.dtype)
