"""A micro-batch as parallelized models take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One micro-batch on this rank's device; the same on every rank of one data-parallel share, but for
    context parallelism, which gives each its parts of the rows.

    Attributes:
        input_ids: [batch, length].
        position_ids: [batch, length].
        targets: passed to the root module's loss.
        documents: passed to the root module; where the documents of packed rows lie.
        real: [batch, length], passed to the root module: what is no padding, where that matters; otherwise None.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: Any = None
    documents: Any = None
    real: torch.Tensor | None = None
