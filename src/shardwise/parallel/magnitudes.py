"""DoRA beside slices: magnitudes lie with the rows they scale, and the norm of a row that is cut is summed over ranks.

PEFT divides each magnitude by the norm of its row in `W + scaling * B A` and multiplies both the matrix's and the
adapter's result with it (Liu et al., 2024). Both are linear, so that on slices of columns, where results are summands,
the factor need only be the whole row's.
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

from shardwise.parallel.slices import Slicer


def slice_magnitudes(
    magnitudes: nn.Module, placements: Mapping[str, Placement], *, layer: nn.Module, slicer: Slicer
) -> None:
    """Slices the magnitudes of one adapter, whose base layer, A and B are sliced already.

    Args:
        magnitudes: PEFT's module of them, which reads the weights of the other three.
        placements: of its own parameters: with the matrix's rows, or whole where its columns are sliced.
        layer: PEFT's layer, with base layer and adapters in it.
    """
    peft: Any = layer
    reads = [peft.get_base_layer(), *peft.lora_A.values(), *peft.lora_B.values()]
    slicer.slice(magnitudes, placements, reads=reads)
    if not any(isinstance(placed, Shard) for placed in placements.values()):
        vars(magnitudes)["get_weight_norm"] = partial(_norm_of_cut_rows, slicer.mesh.get_group())


@torch.no_grad()
def _norm_of_cut_rows(
    group: ProcessGroup, weight: torch.Tensor, lora_weight: torch.Tensor, scaling: float, **_: Any
) -> torch.Tensor:
    """Norms of the rows [rows] of an adapted matrix of which each rank holds some columns [rows, columns here].

    PEFT takes them as constants, and they are the same on all ranks.
    """
    norms = torch.linalg.vector_norm(weight + scaling * lora_weight, dim=1, dtype=torch.float32)
    squares = norms.square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt().to(weight.dtype)
