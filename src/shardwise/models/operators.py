"""Operators by what they do: views, parts of every block, and those of activations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.catalog.config import ACTIVATIONS
from shardwise.models.seen import Op, operator_name

_SHAPED = frozenset({"view", "_unsafe_view", "reshape", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze"})
_CUT = frozenset({"slice", "split", "split_with_sizes", "chunk", "select", "unbind"})
#: Give what they are given, in another form, or a part of it.
VIEWS = _SHAPED | _CUT | frozenset({"alias", "detach", "clone", "new_empty"})
_SUMS = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "cat", "stack", "pow", "_to_copy"})
#: What stands between the parts of a block that are counted: rotations, residuals, scales, activations.
HARMLESS = VIEWS | _SUMS | frozenset({"silu", "gelu", "gelu(tanh)", "relu", "tanh", "sigmoid"})


@cache
def activation_ops() -> dict[str, tuple[str, ...]]:
    """The operators that each known activation runs."""
    from transformers.activations import ACT2FN

    found: dict[str, tuple[str, ...]] = {}
    for name in ACTIVATIONS:
        given = torch.empty(2, device="meta")
        with torch.no_grad(), _Names() as ran:
            ACT2FN[name](given)
        found[name] = tuple(ran.names)
    return found


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(operator_name(func, kwargs))
        return func(*args, **(kwargs or {}))


def only_views(ops: Iterable[Op]) -> bool:
    """Whether operators hand on what they are given as it is."""
    return all(op.name in VIEWS for op in ops)
