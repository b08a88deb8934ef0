"""Bytes per element of each precision, and of optimizer states."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.spec.execution import OptimizerName, Precision

#: Gradients are reduced over ranks in float32, whatever the compute type.
REDUCTION_BYTES = 4
FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Types:
    """Bytes per element. Gradients and optimizer states have the type of trainable weights; `compute` is that of matrix
    products, the residual stream and gathered weights."""

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

#: PyTorch keeps a step count as one float32 scalar per parameter tensor; bitsandbytes as a number of Python.
_STEP_COUNTS: frozenset[OptimizerName] = frozenset({"adamw", "adamw_foreach", "adafactor"})
#: bitsandbytes leaves states of smaller tensors in 32 bits; the others are one byte per element and a float32 scale per
#: block (Dettmers et al., 2022).
_SMALLEST_IN_8_BIT, _BLOCK_OF_8_BIT = 4096, 256


def state_bytes(optimizer: OptimizerName, *, elements: int, factors: int, types: Types, momentum: bool = False) -> int:
    """Bytes of optimizer states for a tensor, or a rank's shard of one; `factors` is Adafactor's (`Tensor.factors`)."""
    step = FLOAT32_BYTES if optimizer in _STEP_COUNTS else 0
    match optimizer:
        case "adamw" | "adamw_foreach":  # two moments (Loshchilov and Hutter, 2019), in the type of the weight
            return 2 * elements * types.trainable + step
        case "adamw_8bit":
            if elements < _SMALLEST_IN_8_BIT:
                return 2 * elements * FLOAT32_BYTES
            return 2 * (elements + FLOAT32_BYTES * -(-elements // _BLOCK_OF_8_BIT))
        case "sgd":
            return elements * types.trainable if momentum else 0
        case "adafactor":
            return factors * types.trainable + step
