"""Which type holds what under each precision, in bytes per element; the trainer's table, seen by the planner."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.spec.layout import OptimizerName, Precision

#: Gradients are reduced over ranks in float32, whatever the compute type.
REDUCTION_BYTES = 4
FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Types:
    """Bytes per element.

    Attributes:
        trainable: trained weights, their gradients and optimizer states.
        frozen: weights that are not trained.
        compute: matrix products, the residual stream and gathered weights.
        compute_name: the type whose peak rate matrix products run at.
    """

    trainable: int
    frozen: int
    compute: int
    compute_name: str

    @property
    def autocasts(self) -> bool:
        """Whether trained weights are cast as they are used."""
        return self.trainable != self.compute


TYPES: dict[Precision, Types] = {
    "mixed": Types(trainable=4, frozen=2, compute=2, compute_name="bfloat16"),
    "bf16": Types(trainable=2, frozen=2, compute=2, compute_name="bfloat16"),
    "fp16": Types(trainable=4, frozen=2, compute=2, compute_name="float16"),
    "fp32": Types(trainable=4, frozen=4, compute=4, compute_name="float32"),
}

#: Optimizer states: (elements per trained element, in bytes each or None for the trained weight's own type).
#: AdamW keeps two moments (Loshchilov and Hutter, 2019); its 8-bit form stores them in one byte each plus a scale per
#: block of 256 (Dettmers et al., 2022); Adafactor's row and column sums are small beside the rest and counted as none.
_STATES: dict[OptimizerName, tuple[int, float | None]] = {
    "adamw": (2, None),
    "adamw_8bit": (2, 1 + 4 / 256),
    "sgd": (0, None),
    "adafactor": (0, None),
}
#: PyTorch keeps AdamW's step count as one float32 scalar per parameter tensor.
_STEP_COUNTS: frozenset[OptimizerName] = frozenset({"adamw", "adamw_8bit"})


def state_bytes(optimizer: OptimizerName, *, elements: int, tensors: int, types: Types, momentum: bool = False) -> int:
    """Bytes of optimizer states for trained elements in so many parameter tensors."""
    copies, width = _STATES[optimizer]
    if optimizer == "sgd" and momentum:
        copies = 1
    steps = FLOAT32_BYTES * tensors if optimizer in _STEP_COUNTS else 0
    return round(copies * elements * (types.trainable if width is None else width)) + steps
