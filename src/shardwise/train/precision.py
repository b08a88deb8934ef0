"""Dtypes of each precision."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardwise.models.anatomy import Anatomy
from shardwise.spec.layout.execution import Precision


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """Dtypes of one precision. `trainable`: storage of trained weights, of gradients and optimizer
    states; `frozen`: of untrained weights; `compute`: matrix products and residual stream."""

    trainable: torch.dtype
    frozen: torch.dtype
    compute: torch.dtype

    @property
    def autocasts(self) -> bool:
        """Whether weights are cast when they are used."""
        return self.trainable != self.compute


def cast_activations(anatomy: Anatomy, *, first_block: int, dtype: torch.dtype) -> None:
    """Casts embeddings, the residual stream and outputs of norms, which autocast leaves wide and
    casts for each matrix anew. Rotary tables take the type of embeddings."""

    def cast(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(dtype)

    anatomy.blocks[first_block].register_forward_pre_hook(lambda _, inputs: (inputs[0].to(dtype), *inputs[1:]))
    norms = (m for m in anatomy.backbone.modules() if "Norm" in type(m).__name__ and next(m.children(), None) is None)
    for module in (anatomy.embedding, *norms):
        module.register_forward_hook(cast)


TYPES: dict[Precision, Dtypes] = {
    "mixed": Dtypes(trainable=torch.float32, frozen=torch.bfloat16, compute=torch.bfloat16),
    "bf16": Dtypes(trainable=torch.bfloat16, frozen=torch.bfloat16, compute=torch.bfloat16),
    "fp16": Dtypes(trainable=torch.float32, frozen=torch.float16, compute=torch.float16),
    "fp32": Dtypes(trainable=torch.float32, frozen=torch.float32, compute=torch.float32),
}


def type_name(dtype: torch.dtype) -> str:
    """`float32`, as in config.json."""
    return str(dtype).removeprefix("torch.")
