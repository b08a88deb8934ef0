"""Dtypes of each precision, and the scale of float16's loss."""

import math
from dataclasses import dataclass
from typing import Any, Self

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


FIRST_SCALE, GROWTH, BACKOFF, GROWTH_STEPS = 65536.0, 2.0, 0.5, 2000


@dataclass(kw_only=True)
class LossScale:
    """Dynamic loss scaling of float16 (Micikevicius et al., 2018), with figures of torch's
    GradScaler. Gradients in float16 below 6e-8 are lost: the loss is multiplied before backward, by
    `value`, and gradients are divided before they are clipped; 1 where nothing is scaled, which
    `is_fixed`. A step whose gradient norm, alike on all ranks, is not finite is skipped;
    `good_steps`: consecutive steps not skipped since the scale last changed."""

    value: float = 1.0
    good_steps: int = 0
    is_fixed: bool = True

    @classmethod
    def of(cls, precision: Precision) -> Self:
        """What a precision begins with."""
        return cls(value=FIRST_SCALE, is_fixed=False) if precision == "fp16" else cls()

    def skips(self, *, loss: float, norm: float) -> bool:
        """Whether a step is left out: gradients overflowed, though the loss did not."""
        return not self.is_fixed and math.isfinite(loss) and not math.isfinite(norm)

    def follow(self, *, skipped: bool) -> None:
        """After each step: smaller where it was skipped, larger after many that were not."""
        if self.is_fixed:
            return
        self.good_steps = 0 if skipped else self.good_steps + 1
        if skipped:
            self.value *= BACKOFF
        elif self.good_steps == GROWTH_STEPS:
            self.value, self.good_steps = self.value * GROWTH, 0

    def to_json(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"value": self.value, "good_steps": self.good_steps}

    def restore(self, saved: dict[str, float] | None) -> None:
        """Goes on from a checkpoint; one of another precision has nothing to say."""
        if saved is not None and not self.is_fixed:
            self.value, self.good_steps = float(saved["value"]), int(saved["good_steps"])
