"""Gradients of parts, whose norms and sums are those of whole weights, for torch's own clipping."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from shardwise.errors import UnsupportedError
from shardwise.parallel.mesh import all_gather_single


class Gradient(torch.Tensor):
    """This rank's part of a gradient. What is computed from it element by element is again such a
    part; a norm, a sum or an extreme over all of its elements is that of the whole weight, on every
    rank: a collective, which every rank calls. `counts`: whether the part is counted on this rank,
    of those that hold copies of it."""

    part: torch.Tensor
    counts: bool

    @classmethod
    def of(cls, part: torch.Tensor, *, counts: bool) -> Self:
        """A part as such."""
        options: dict[str, Any] = {"strides": part.stride(), "dtype": part.dtype, "device": part.device}
        made: Any = torch.Tensor._make_wrapper_subclass(cls, part.size(), **options)  # pyright: ignore
        made.part, made.counts = part, counts
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def __repr__(self, **_: Any) -> str:
        return f"Gradient(part of this rank: {self.part!r})"

    def to_local(self) -> torch.Tensor:
        """This rank's part, a plain tensor."""
        return self.part

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # pyright: ignore
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Gradient)]
        name = func._schema.name.removeprefix("aten::")
        if name == "_foreach_norm":
            return [torch.linalg.vector_norm(one, *args[1:]) for one in args[0]]
        if name in _COMBINED:
            return _whole(func, given, args, kwargs or {}, name=name)
        if torch.Tag.pointwise in func.tags or name in _ELEMENTWISE or name.startswith(("_foreach", "_fused")):
            return _elementwise(func, given, args, kwargs or {}, name=name)
        if name == "cat" and len(given) == len(args[0]) and all(part.ndim == 1 for part in args[0]):
            # Side by side, of the parts those that this rank counts.
            return Gradient.of(torch.cat([one.part if one.counts else one.part[:0] for one in given]), counts=True)
        raise _refused(name)


def plain(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient."""
    return gradient.part if isinstance(gradient, Gradient) else gradient


def _refused(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} of a gradient: each rank holds a part of it, and only what is computed element by element, and norms, "
        "sums and extremes over all elements, are right of parts. Clip by model.clip_grad_norm_(max_norm) or "
        "torch.nn.utils.clip_grad_norm_; this rank's part is gradient.to_local()"
    )


#: Beside what torch calls pointwise: the same elements, or as many new ones.
_ELEMENTWISE = frozenset(
    # ruff: noqa: SIM905
    "view _unsafe_view detach alias clone _to_copy permute t transpose squeeze unsqueeze zeros_like ones_like "
    "empty_like full_like fill fill_ zero_ copy_ masked_fill masked_fill_".split()
)

#: Reductions -> how parts' results become that of the whole, and the result for no elements.
_COMBINED: dict[str, tuple[Callable[[torch.Tensor, float], torch.Tensor], float]] = {
    **dict.fromkeys(("sum", "mean", "dot", "vdot", "count_nonzero"), (lambda found, _: found.sum(), 0.0)),
    **dict.fromkeys(("max", "amax"), (lambda found, _: found.amax(), -math.inf)),
    "any": (lambda found, _: found.amax(), 0.0),
    **dict.fromkeys(("min", "amin", "all"), (lambda found, _: found.amin(), math.inf)),
    **dict.fromkeys(("linalg_vector_norm", "norm"), (torch.linalg.vector_norm, 0.0)),
}


def _local(func: Any, args: Any, kwargs: Any, *, of: Callable[[Gradient], torch.Tensor] = plain) -> Any:
    return func(*tree_map_only(Gradient, of, args), **tree_map_only(Gradient, of, kwargs))


def _elementwise(func: Any, given: list[Gradient], args: Any, kwargs: Any, *, name: str) -> Any:
    """Parts of parts; what is changed in place stays what it is."""
    found = _local(func, args, kwargs)
    if func._schema.is_mutable:
        return kwargs.get("out", args[0]) if isinstance(found, torch.Tensor) else found
    if not isinstance(found, torch.Tensor):
        pairs = zip(found, args[0], strict=True)
        return [Gradient.of(one, counts=of.counts) if isinstance(of, Gradient) else one for one, of in pairs]
    if any(one.counts != given[0].counts or one.part.numel() != found.numel() for one in given):
        raise _refused(f"{name} with another shape or weight")
    return Gradient.of(found, counts=given[0].counts)


def _whole(func: Any, given: list[Gradient], args: Any, kwargs: Any, *, name: str) -> torch.Tensor:
    """What a reduction over all elements of the whole weight is: one exchange of parts' results."""
    like = _local(func, args, kwargs, of=lambda one: one.part.new_ones((1,) * one.ndim))
    order = 2.0 if len(args) < 2 or args[1] is None or "norm" not in name else float(args[1])
    if not isinstance(like, torch.Tensor) or like.ndim or order <= 0:
        raise _refused(f"{name} over some dims, or of an order that is not positive,")
    part, (combine, nothing) = given[0].part, _COMBINED[name]
    if name in ("sum", "mean", "linalg_vector_norm") and part.is_floating_point():  # 16 bits and long sums lose digits
        kwargs = {**kwargs, "dtype": torch.float64 if part.device.type == "cpu" else torch.float32}
    counted = part.numel() * given[0].counts
    mine = part.new_tensor([nothing, 0.0], dtype=torch.float64)
    if counted:
        mine[0], mine[1] = part.sum(**kwargs) if name == "mean" else _local(func, args, kwargs), counted
    everyone = mine.new_empty(dist.get_world_size() * 2)
    all_gather_single(everyone, mine)
    values, elements = everyone.view(-1, 2).unbind(1)
    found = combine(values, order)
    return (found / elements.sum() if name == "mean" else found).to(like)
