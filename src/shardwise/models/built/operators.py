"""Operators by what they do: views, parts of every block, activations, and the kinds of norms."""

import copy
from collections.abc import Iterable
from functools import cache

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwise.catalog.config import ACTIVATIONS
from shardwise.errors import UnsupportedError
from shardwise.models.built.traced import Call, Op, operator_name
from shardwise.spec.model.shape import Norm, NormKind

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


def norm_of(call: Call, *, name: str, tokens: int) -> Norm:
    """What a call of a norm in a forward of `tokens` tokens says of it. Raises UnsupportedError: it has other
    parameters than a weight and a bias."""
    parameters = dict(call.module.named_parameters())
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if not parameters.keys() <= {"weight", "bias"} or (weight is None and bias is not None):
        raise UnsupportedError(
            f"its norm {call.name} has the parameters {', '.join(parameters)}; a weight, and a bias or none, is known"
        )
    size = 0 if weight is None else weight.numel()
    if bias is not None and bias.numel() != size:
        raise UnsupportedError(f"its norm {call.name} has a bias of {bias.numel()} elements and a weight of {size}")
    return Norm(name=name, size=size, width=call.given.numel() // tokens, bias=bias is not None)


def norm_kind(call: Call) -> NormKind:
    """The kind of a norm, as the planner counts what it keeps. Raises UnsupportedError: it is of none that is known."""
    names = [op.name for op in call.ops]
    if "native_layer_norm" in names:
        return "layer"
    if names.count("mean") == 2 and "sub" in names:
        return "centred"
    # torch's own keeps less where it is one kernel, which the meta device does not show.
    fused = type(call.module).forward is nn.RMSNorm.forward
    if fused or names.count("mean") != 1 or "rsqrt" not in names or "sub" in names:
        raise UnsupportedError(
            f"its norm {call.name} ({type(call.module).__name__}) runs {', '.join(names)}, as no known norm does"
        )
    return "gemma" if _multiplies_in_float32(call.module, call.given) else "rms"


def _multiplies_in_float32(module: nn.Module, given: torch.Tensor) -> bool:
    """Whether a norm multiplies by its weight before it rounds to bfloat16."""
    if getattr(module, "weight", None) is None:
        return False
    low = copy.deepcopy(module).to(torch.bfloat16)
    with torch.no_grad(), _Products(low.get_parameter("weight")) as seen:
        low(given.to(torch.bfloat16))
    return torch.float32 in seen.types


class _Products(TorchDispatchMode):
    """The types of the products with a tensor, or with what is made of it alone."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.types: list[torch.dtype] = []
        self._made = {id(weight): weight}

    def __torch_dispatch__(self, func: object, types: object, args: tuple[object, ...] = (), kwargs: object = None):
        """Runs an operator; what reads nothing but the weight goes on being the weight."""
        result = func(*args, **(kwargs or {}))  # pyright: ignore
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        of_weight = [id(tensor) in self._made for tensor in tensors]
        if isinstance(result, torch.Tensor) and any(of_weight):
            if all(of_weight):
                self._made[id(result)] = result
            elif func.overloadpacket.__name__ == "mul":  # pyright: ignore
                self.types.append(result.dtype)
        return result
