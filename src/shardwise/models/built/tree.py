"""Every parameter of a model from its module tree alone, for blocks whose code is not understood.

A linear layer is a matrix that adapters can hang on. Parameters of two dims and more are matrices
too, stacked where their first dim counts the experts of a module. All others are listed with the
norms, as their size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, cast

import torch
from torch import nn

from shardwise.models.built.watch import is_linear
from shardwise.spec.model.shape import Matrix, Norm, Reads
from shardwise.spec.support.splits import style_of

#: By which attributes modules and configurations say how many experts a token is routed to.
_ACTIVE = ("num_experts_per_tok", "top_k", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k")
_ACTIVE += ("num_selects", "top_k_experts")
Part = Matrix | Norm


@dataclass(frozen=True, kw_only=True)
class CountedParameters:
    """Parameters of a module, by name inside it; those that were counted before are left out."""

    matrices: tuple[Matrix, ...]
    norms: tuple[Norm, ...]


class Tree:
    """Reads modules one after the other and counts each parameter once. `stated`: the
    configuration; `plan`: transformers' styles of tensor parallelism, by name inside a block."""

    def __init__(self, stated: Mapping[str, Any], plan: Mapping[str, str]) -> None:
        self._stated, self._plan = stated, plan
        self._counted: set[int] = set()

    def skip(self, parameter: torch.Tensor) -> None:
        """Leaves a parameter out of all that is read from now on."""
        self._counted.add(id(parameter))

    def parts(self, module: nn.Module) -> CountedParameters:
        """What is below a module."""
        matrices: list[Matrix] = []
        norms: list[Norm] = []
        for name, one in module.named_modules():
            own = {key: p for key, p in one.named_parameters(recurse=False) if id(p) not in self._counted}
            self._counted |= {id(parameter) for parameter in own.values()}
            for part in self._of_module(name, one, own):
                (matrices if isinstance(part, Matrix) else norms).append(part)  # pyright: ignore
        return CountedParameters(matrices=tuple(matrices), norms=tuple(norms))

    def _of_module(self, name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> Iterator[Part]:
        weight, bias = own.get("weight"), own.get("bias")
        alike = bias is None or (weight is not None and bias.shape == weight.shape)
        if is_linear(module) and weight is not None and own.keys() <= {"weight", "bias"}:
            yield self._linear(name, module, weight, bias)
        elif "shared" not in name and self._are_experts(module, own):
            yield from self._stacks(name, module, own)
        elif weight is not None and weight.ndim == 1 and own.keys() <= {"weight", "bias"} and alike:
            yield Norm(name=name, size=weight.numel(), width=weight.numel(), bias=bias is not None)
        elif weight is not None and weight.ndim > 1 and bias is not None and bias.shape == weight.shape[:1]:
            yield replace(cast(Matrix, _bare(name, "weight", weight)), bias=True)
            yield from (_bare(name, key, one) for key, one in own.items() if key not in ("weight", "bias"))
        else:
            yield from (_bare(name, key, parameter) for key, parameter in own.items())

    def _linear(self, name: str, module: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> Matrix:
        turned = not isinstance(module, nn.Linear)
        rows, columns = weight.shape[::-1] if turned else weight.shape
        # What gives no row for a row is no layer that PEFT's product could be added to.
        adaptable, reads = turned or type(module) is nn.Linear or _gives_rows(module), reads_by_plan(name, self._plan)
        return Matrix(name, rows, columns, bias=bias is not None, reads=reads, transposed=turned, adaptable=adaptable)

    def _are_experts(self, module: nn.Module, own: dict[str, nn.Parameter]) -> bool:
        """Whether parameters are stacks of experts, which may lack a matrix (LongCat-Flash)."""
        if not any(parameter.ndim == 3 for parameter in own.values()) or isinstance(module, nn.modules.conv._ConvNd):
            return False
        said = {value for key, value in vars(module).items() if "expert" in key and isinstance(value, int)}
        stated = {value for key, value in self._stated.items() if "expert" in key and type(value) is int}
        return {parameter.shape[0] for parameter in own.values()} <= said | stated

    def _stacks(self, name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> Iterator[Part]:
        # What is not told the routes runs each token through every expert, as Llama 4's experts do.
        runs_all = len(signature(module.forward).parameters) == 1
        turned = runs_all or bool(getattr(module, "is_transposed", False))
        counts = {parameter.shape[0] for parameter in own.values()}  # that differ are not dealt
        for key, parameter in own.items():
            if parameter.ndim != 3:
                if not _is_bias(key, own):
                    yield _bare(name, key, parameter)
                continue
            rows, columns = parameter.shape[:0:-1] if turned else parameter.shape[1:]
            yield Matrix(
                _joined(name, "" if key == "weight" else key),
                rows,
                columns,
                bias=any(other.startswith(key) and _is_bias(other, own) for other in own),
                count=parameter.shape[0],
                reads="expert_product" if "down" in key or "output" in name else "expert_input",
                transposed=turned,
                stacked=True,
                whole=len(counts) > 1,
                adaptable=False,
                active=self._active(module, parameter.shape[0]),
                runs_all=runs_all,
            )

    def _active(self, module: nn.Module, count: int) -> int:
        found = (getattr(module, "top_k", None), *map(self._stated.get, _ACTIVE))
        return min(count, next((one for one in found if type(one) is int), count))


def _gives_rows(linear: nn.Linear) -> bool:
    try:
        made: Any = linear(torch.empty(2, linear.in_features, device=linear.weight.device))
    except (RuntimeError, ValueError, IndexError):
        return False
    return isinstance(made, torch.Tensor) and made.shape == (2, linear.out_features)


def _is_bias(key: str, own: Mapping[str, Any]) -> bool:
    """Whether a parameter is the bias of another one beside it: `down_proj_bias` of `down_proj`."""
    return key.endswith("_bias") and key[:-5] in own


def _bare(name: str, key: str, parameter: torch.Tensor) -> Part:
    whole = _joined(name, key)
    if parameter.ndim < 2 or not parameter.requires_grad:
        return Norm(name=whole, size=parameter.numel(), width=0, frozen=not parameter.requires_grad)
    rows = parameter.shape[0]
    called = name if key == "weight" and name else whole
    return Matrix(called, rows, parameter.shape[1:].numel(), reads="other", adaptable=False)


def _joined(name: str, key: str) -> str:
    return ".".join(part for part in (name, key) if part)


def reads_by_plan(name: str, plan: Mapping[str, str]) -> Reads:
    """The role of a matrix as far as tensor parallelism needs it, by transformers' plan."""
    style, attends = style_of(name, plan), "mlp" not in name and "expert" not in name and "feed_forward" not in name
    if style == "colwise":  # rows of the weight
        return "attention_input" if attends else "mlp_input"
    if style == "rowwise":
        return "attention_output" if attends else "mlp_product"
    return "other"
