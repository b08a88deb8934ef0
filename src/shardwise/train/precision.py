"""Dtypes of each precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from shardwise.spec.layout.execution import Precision


@dataclass(frozen=True, kw_only=True)
class Types:
    """Dtypes of one precision.

    Attributes:
        trainable: storage of trained weights, of their gradients and of optimizer states.
        frozen: storage of weights that are not trained.
        compute: matrix products and the residual stream.
    """

    trainable: torch.dtype
    frozen: torch.dtype
    compute: torch.dtype

    @property
    def autocasts(self) -> bool:
        """Whether weights are cast when they are used."""
        return self.trainable != self.compute


TYPES: dict[Precision, Types] = {
    "mixed": Types(trainable=torch.float32, frozen=torch.bfloat16, compute=torch.bfloat16),
    "bf16": Types(trainable=torch.bfloat16, frozen=torch.bfloat16, compute=torch.bfloat16),
    "fp32": Types(trainable=torch.float32, frozen=torch.float32, compute=torch.float32),
}


def type_name(dtype: torch.dtype) -> str:
    """`float32`, as in config.json."""
    return str(dtype).removeprefix("torch.")
