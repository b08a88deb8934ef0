"""Pieces of tensors in checkpoints: a name, a global shape, and the window that this rank holds.

Names are Hugging Face's, so that a checkpoint of one layout can be read by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardwise.models.load import local_window
from shardwise.parallel.optimizer.stepped import Stepped
from shardwise.parallel.ownership import local_part
from shardwise.train.precision import type_name


@dataclass(frozen=True, kw_only=True)
class TensorShard:
    """The part of one named tensor that a rank holds. `shape`: global shape; `offsets`: where the part begins in each
    dim; `local`: the part itself, sharing storage with the live tensor."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: torch.Tensor

    def to_json(self) -> dict[str, Any]:
        """As a manifest describes it."""
        window = {"offsets": list(self.offsets), "lengths": list(self.local.shape)}
        return {"name": self.name, "shape": list(self.shape), "dtype": type_name(self.local.dtype), **window}


def piece(name: str, tensor: torch.Tensor, *, local: torch.Tensor | None = None) -> TensorShard:
    """The local part of a plain or sharded tensor, or one of something with the same shape and placement."""
    offsets, _ = local_window(tensor)
    part = local_part(tensor) if local is None else local.detach()
    return TensorShard(name=name, shape=tuple(tensor.shape), offsets=offsets, local=part)


Counted = Callable[[str, torch.Tensor], bool]


def weight_pieces(parameters: Iterable[tuple[str, nn.Parameter]], counted: Counted) -> list[TensorShard]:
    """Pieces of trained weights that are counted."""
    return [piece(name, p) for name, p in parameters if p.requires_grad and counted(name, p)]


def optimizer_pieces(stepped: Stepped, optimizer: torch.optim.Optimizer, counted: Counted) -> list[TensorShard]:
    """Pieces of optimizer states that are counted, named `optimizer.STATE.PARAMETER`."""
    return [
        piece(f"optimizer.{key}.{name}", placed, local=state)
        for name, key, state, placed in stepped.states(optimizer)
        if counted(name, placed)
    ]


def overlap(
    target: TensorShard, offsets: Sequence[int], lengths: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a piece and a stored window overlap, as (slices into the piece, slices into the stored window)."""
    dims = zip(target.offsets, target.local.shape, offsets, lengths, strict=True)
    both = [(at, begin, max(at, begin), min(at + length, begin + count)) for at, length, begin, count in dims]
    if any(first >= end for _, _, first, end in both):
        return None
    into_piece = tuple(slice(first - at, end - at) for at, _, first, end in both)
    return into_piece, tuple(slice(first - begin, end - begin) for _, begin, first, end in both)
