"""The interface of a parallelized model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One micro-batch on this rank's device; the same on every rank of one data-parallel share.

    Attributes:
        input_ids: [batch, length].
        position_ids: [batch, length].
        targets: passed to the root module's loss.
        documents: passed to the root module; where the documents of packed rows lie.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: Any = None
    documents: Any = None


class Spread(Protocol):
    """A model over ranks. Every rank calls the same method with its own share of the data."""

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The root modules of this rank, one for each stage."""
        ...

    def gradients(self, micros: Sequence[Inputs], *, scale: float) -> torch.Tensor:
        """Accumulates the gradients of `scale` times the summed loss of all ranks' micro-batches.

        Returns:
            A float64 scalar: this rank's part of the summed loss; all ranks' parts add up to it.
        """
        ...

    def losses(self, micros: Sequence[Inputs]) -> list[torch.Tensor]:
        """The summed loss of each micro-batch, without gradients; zeros on ranks that compute or count none."""
        ...
