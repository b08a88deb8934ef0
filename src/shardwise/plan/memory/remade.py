"""Weights that a block makes anew of bare parameters and their adapters: PEFT's way with stacked experts.

`peft.tuners.lora.layer.ParamWrapper` adds the product of the two halves to the whole parameter wherever it is used, so
that these bytes depend on no token: `tests/unit/plan/test_experts.py` holds them against what PyTorch allocates.
"""

from __future__ import annotations

from shardwise.plan.memory.activations import Setting
from shardwise.spec.model import ModelShape


def remade_bytes(model: ModelShape, setting: Setting) -> float:
    """Bytes of the weights that a block makes anew of bare parameters and their adapters, whatever its tokens.

    Autograd keeps them from the forward in which they are used to its backward.
    """
    return sum(_remade(model, setting)) * setting.types.compute


def remade_once_bytes(model: ModelShape, setting: Setting) -> float:
    """Bytes of the largest of them: where nothing is kept, one goes before the next one comes."""
    return max(_remade(model, setting), default=0) * setting.types.compute


def remade_backward_bytes(model: ModelShape, setting: Setting) -> float:
    """Bytes of the gradients of such weights, above what a block keeps: each stands where those used later are gone."""
    most = gone = 0
    for elements in reversed(_remade(model, setting)):
        most, gone = max(most, elements - gone), gone + elements
    return most * setting.types.compute


def _remade(model: ModelShape, setting: Setting) -> list[int]:
    return [m.count * m.rows * m.columns for m in model.matrices if m.name in setting.inventory.bare]
