"""Pieces of tensors in checkpoints: a name, a global shape, and the window that this rank holds.

Names are Hugging Face's, so that a checkpoint of one layout can be read by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from shardwise.models.load import local_window
from shardwise.parallel.optimizer.stepped import Stepped
from shardwise.parallel.ownership import local_part


@dataclass(frozen=True, kw_only=True)
class TensorShard:
    """The part of one named tensor that a rank holds. `shape`: global shape; `offsets`: where the part begins in each
    dim; `local`: the part itself, sharing storage with the live tensor."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: torch.Tensor


def piece(name: str, tensor: torch.Tensor, *, local: torch.Tensor | None = None) -> TensorShard:
    """The local part of a plain or sharded tensor, or one of something with the same shape and placement."""
    offsets, _ = local_window(tensor)
    part = local_part(tensor) if local is None else local.detach()
    return TensorShard(name=name, shape=tuple(tensor.shape), offsets=offsets, local=part)


Counted = Callable[[str, torch.Tensor], bool]


def weight_pieces(
    parameters: Iterable[tuple[str, nn.Parameter]], *, counted: Counted | None = None
) -> list[TensorShard]:
    """Pieces of trained weights; `counted(name, tensor)` selects them."""
    return [piece(name, p) for name, p in parameters if p.requires_grad and (counted is None or counted(name, p))]


def optimizer_pieces(
    stepped: Stepped, optimizer: torch.optim.Optimizer, *, counted: Counted | None = None
) -> list[TensorShard]:
    """Pieces of optimizer states, named `optimizer.STATE.PARAMETER`."""
    return [
        piece(f"optimizer.{key}.{name}", placed, local=state)
        for name, key, state, placed in stepped.states(optimizer)
        if counted is None or counted(name, placed)
    ]


def overlap(
    target: TensorShard, offsets: Sequence[int], lengths: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where a piece and a stored window overlap, as (slices into the piece, slices into the stored window)."""
    into_piece: list[slice] = []
    into_stored: list[slice] = []
    for at, length, begin, count in zip(target.offsets, target.local.shape, offsets, lengths, strict=True):
        first, end = max(at, begin), min(at + length, begin + count)
        if first >= end:
            return None
        into_piece.append(slice(first - at, end - at))
        into_stored.append(slice(first - begin, end - begin))
    return tuple(into_piece), tuple(into_stored)
