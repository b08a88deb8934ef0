"""Pieces of tensors in checkpoints: a name, a global shape, and the window that this rank holds.

Names are Hugging Face's, so that a checkpoint of one layout can be read by another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.models.load import local_window


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The part of one named tensor that a rank holds. `shape`: global shape; `offsets`: where the part begins in each
    dim; `local`: the part itself, sharing storage with the live tensor."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: torch.Tensor


def piece(name: str, tensor: torch.Tensor) -> Piece:
    """The local part of a plain or sharded tensor."""
    offsets, _ = local_window(tensor)
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return Piece(name=name, shape=tuple(tensor.shape), offsets=offsets, local=local.detach())


Counted = Callable[[str, torch.Tensor], bool]


def weight_pieces(parameters: Iterable[tuple[str, nn.Parameter]], *, counted: Counted | None = None) -> list[Piece]:
    """Pieces of trained weights; `counted(name, tensor)` selects them."""
    return [piece(name, p) for name, p in parameters if p.requires_grad and (counted is None or counted(name, p))]


def optimizer_pieces(
    stepped: Iterable[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer, *, counted: Counted | None = None
) -> list[Piece]:
    """Pieces of optimizer states, named `optimizer.STATE.PARAMETER`; `stepped` are the optimizer's parameters."""
    found: list[Piece] = []
    for name, parameter in stepped:
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        tensors = ((key, value) for key, value in state.items() if isinstance(value, torch.Tensor))
        found += [piece(f"optimizer.{key}.{name}", v) for key, v in tensors if counted is None or counted(name, v)]
    return found


@dataclass(frozen=True, kw_only=True)
class StoredSlice:
    """A stored window: its file, offsets and lengths in each dim."""

    file: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


def overlap(target: Piece, stored: StoredSlice) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a stored window and a piece overlap, as (slices into the piece, slices into the stored window)."""
    into_piece: list[slice] = []
    into_stored: list[slice] = []
    for at, length, begin, count in zip(
        target.offsets, target.local.shape, stored.offsets, stored.lengths, strict=True
    ):
        first, end = max(at, begin), min(at + length, begin + count)
        if first >= end:
            return None
        into_piece.append(slice(first - at, end - at))
        into_stored.append(slice(first - begin, end - begin))
    return tuple(into_piece), tuple(into_stored)


def num_covered(windows: Sequence[tuple[slice, ...]]) -> int:
    """Elements of disjoint windows."""
    return sum(math.prod(part.stop - part.start for part in window) for window in windows)
