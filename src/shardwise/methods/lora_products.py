"""Products of adapted matrices that read one input, as one function of it.

PEFT computes `x W^T + (x A^T) B^T s` matrix by matrix: each A reads x again, and passes over memory
scale and add. Here the A's of queries, keys and values, or of gate and up, are one matrix, and
products add to what others made. Names and files of parameters stay PEFT's, and so do the forwards
of whatever is not plain LoRA of a frozen linear layer.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

#: Names, in one module, of linear layers that read one input; all others read one of their own.
_READ_ONE_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def join_products(model: nn.Module, *, together: bool = True) -> None:
    """Replaces the forwards of adapted linear layers, in place; `together`: where several read one
    input, by one function of it, whose results wait with the first of these layers."""
    for parent in model.modules():
        layers: dict[str, Any] = {name: child for name, child in parent.named_children() if _is_plain(child)}
        for names in _READ_ONE_INPUT if together else ():
            found = [name for name in names if name in layers]
            if len({layers[name].scaling["default"] for name in found}) == 1:  # and no pattern gives them others
                _take_over([layers.pop(name) for name in found])
        for layer in layers.values():
            _take_over([layer])


def _is_plain(layer: nn.Module) -> bool:
    """Whether it is PEFT's layer around a frozen linear layer, with LoRA and nothing beside it."""
    peft: Any = layer
    if getattr(layer, "lora_variant", None) != {}:
        return False
    base = peft.get_base_layer()
    if type(base) is not nn.Linear and not hasattr(base, "dequantised"):
        return False
    frozen = not any(parameter.requires_grad for parameter in base.parameters())
    return frozen and not any(isinstance(one, nn.Dropout) for one in peft.lora_dropout.values())


def _take_over(layers: Sequence[Any]) -> None:
    """Stands in for the forwards of layers that are given one tensor in turn. By their class, as
    compiled blocks of one kind share a graph only where no layer has a forward of its own."""
    for layer in layers:
        vars(layer)["joined"] = tuple(layers)
        layer.__class__ = _joined_class(type(layer))


@cache
def _joined_class(kind: type) -> type:
    return type(kind.__name__, (_Joined, kind), {})


class _Joined(nn.Module):
    """One of the layers in `joined`: the first computes the results of all."""

    joined: Sequence[Any]
    base_layer: nn.Module
    given: Tensor | None = None
    results: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """The adapted product with x [..., columns]; with adapters off, the frozen one."""
        if getattr(self, "_disable_adapters", False):
            return self.base_layer(x)
        if len(self.joined) == 1:
            return _product(self.joined, x)[0]
        first, last = self.joined[0], self.joined[-1]
        if self is first or x is not first.given:
            first.given, first.results = x, _product(self.joined, x)
        result = first.results[self.joined.index(self)]
        if self is last:
            first.given, first.results = None, ()
        return result


def _product(layers: Sequence[Any], x: Tensor) -> tuple[Tensor, ...]:
    if torch.is_autocast_enabled(x.device.type):  # on GPUs it takes powers in float32: Phi's GELU
        x = x.to(torch.get_autocast_dtype(x.device.type))
    bases = [layer.base_layer for layer in layers]
    frozen = [getattr(base, key, None) for key in ("weight", "scales", "bias") for base in bases]
    halves = [getattr(layer, half)["default"].weight for half in ("lora_A", "lora_B") for layer in layers]
    return _Product.apply(x, layers[0].scaling["default"], bases, *frozen, *halves)  # pyright: ignore[reportReturnType]


class _Product(torch.autograd.Function):
    """Results for x [..., columns] of frozen `layers`, of which `tensors` has all weights, then
    scales (of quantised ones), biases (or None), A's and B's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scaling: float, layers: Sequence[Any], *tensors: Any) -> tuple[Tensor, ...]:
        count = len(layers)
        weights, scales, biases, halves, others = (tensors[at : at + count] for at in range(0, len(tensors), count))
        a = torch.cat(halves).to(x.dtype)
        b = [half.to(x.dtype) for half in others]
        rows = x.flatten(0, -2)
        between = (rows @ a.t()) * scaling
        parts = between.split([half.shape[0] for half in halves], dim=1)
        ctx.save_for_backward(x, between, a, *weights, *scales, *b)
        ctx.scaling, ctx.ranks, ctx.trained = scaling, [half.shape[0] for half in halves], halves[0].dtype
        ctx.layers = layers
        # No views: Llama 4 adds to a result in place, Gemma 3n multiplies one.
        made = (
            sum_of_products([rows, part], [_matrix(*frozen).t(), half.t()], bias)
            for *frozen, bias, part, half in zip(layers, weights, scales, biases, parts, b, strict=True)
        )
        shape = x.shape[:-1]
        return tuple(torch.ops.aten._unsafe_view(one, (*shape, one.shape[-1])) for one in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, between, a, *tensors = ctx.saved_tensors
        count = len(gradients)
        inner: list[Tensor] = []
        of_b: list[Tensor] = []
        flats = [gradient.flatten(0, -2) for gradient in gradients]
        parts = between.split(ctx.ranks, dim=1)
        weights, scales, b = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        for flat, part, half in zip(flats, parts, b, strict=True):
            inner.append(flat @ half)
            of_b.append((flat.t() @ part).to(ctx.trained))
        back = torch.cat(inner, dim=1) * ctx.scaling
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _through(flats, back, list(zip(ctx.layers, weights, scales, strict=True)), a).view_as(x)
        of_a = (back.t() @ x.flatten(0, -2)).to(ctx.trained).split(ctx.ranks)
        return of_x, None, None, *[None] * 3 * count, *of_a, *of_b


def _through(gradients: list[Tensor], back: Tensor, frozen: Sequence[tuple[Any, Any, Any]], a: Tensor) -> Tensor:
    """The gradient of what was read. Of quantised matrices one at a time stands in full."""
    if frozen[0][2] is None:
        return sum_of_products([*gradients, back], [*(weight for _, weight, _ in frozen), a])
    sums = back @ a
    for gradient, layer in zip(gradients, frozen, strict=True):
        sums.addmm_(gradient, _matrix(*layer))
    return sums


def _matrix(layer: Any, weight: Tensor, scales: Tensor | None) -> Tensor:
    return weight if scales is None else layer.dequantised(weight, scales)


#: One operator for torch's compiler: it would write `a + b @ c` out of place, which copies `a`
#: before the product adds to it (`addmm_out_cuda_impl` of ATen). Selective recompute saves its
#: result, and no summand.
_OPERATORS = torch.library.Library("shardwise", "FRAGMENT")
_OPERATORS.define("sum_of_products(Tensor[] lefts, Tensor[] rights, Tensor? bias=None) -> Tensor")
sum_of_products = torch.ops.shardwise.sum_of_products


@torch.library.impl(_OPERATORS, "sum_of_products", "CompositeExplicitAutograd")
def _sum_of_products(lefts: Sequence[Tensor], rights: Sequence[Tensor], bias: Tensor | None = None) -> Tensor:
    """Sum of `left @ right`, [rows, inner] and [inner, columns], in place, and `bias` [columns]."""
    first, *others = zip(lefts, rights, strict=True)
    sums = torch.mm(*first) if bias is None else torch.addmm(bias, *first)
    for left, right in others:
        sums.addmm_(left, right)
    return sums


@torch.library.register_fake("shardwise::sum_of_products", lib=_OPERATORS)
def _made(lefts: Sequence[Tensor], rights: Sequence[Tensor], bias: Tensor | None = None) -> Tensor:
    del bias
    return lefts[0].new_empty(lefts[0].shape[0], rights[0].shape[1])
