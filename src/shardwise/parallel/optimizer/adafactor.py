"""Adafactor (Shazeer and Stern, 2018) over sharded matrices, by torch.optim.Adafactor's arithmetic.

The second moments of a matrix are kept as means over its rows and over its columns. A rank that
holds a part of a matrix adds up with the others that hold the rest, so that means and norms are
those of the whole.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from shardwise.parallel.ownership import sharded_dims


@dataclass(frozen=True, kw_only=True)
class _Whole:
    """The tensor a parameter is part of: its shape, and by which groups each of its dims is cut."""

    shape: torch.Size
    groups: dict[int, list[dist.ProcessGroup]]

    @classmethod
    def of(cls, placed: torch.Tensor) -> Self:
        groups: dict[int, list[dist.ProcessGroup]] = {}
        for axis, dim in sharded_dims(placed).items():
            groups.setdefault(dim, []).append(cast(DTensor, placed).device_mesh.get_group(axis))
        return cls(shape=placed.shape, groups=groups)

    def added(self, part: torch.Tensor, *dims: int) -> torch.Tensor:
        """The sum over the ranks that cut some dims, or any; in place."""
        for dim, groups in self.groups.items():
            if not dims or dim in dims:
                for group in groups:
                    dist.all_reduce(part, group=group)
        return part

    def norm(self, part: torch.Tensor) -> torch.Tensor:
        """The whole's 2-norm. By rows first: over millions of float32 it is inexact on a CPU."""
        return self.added(torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32).square().sum()).sqrt()


#: torch's: power of steps by which moments are forgotten, least size of weights, most of an update.
_BETA2_DECAY, _EPS, _CLIP = -0.8, 1e-3, 1.0


class Adafactor(torch.optim.Optimizer):
    """As torch's, for parts of larger parameters. `placed`: for each, one as the whole is."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, placed: Mapping[torch.Tensor, torch.Tensor]
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self._wholes = {parameter: _Whole.of(whole) for parameter, whole in placed.items()}

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # closures are for other optimizers
        """Every rank steps its part of each parameter that has a gradient, in the same order."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)

    def _step(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, whole = cast(torch.Tensor, parameter.grad), self._wholes[parameter]
        size, smallest = whole.shape.numel(), torch.finfo(parameter.dtype).eps
        state = self.state[parameter] or self._new_state(parameter)
        state["step"] += 1
        count = state["step"].item()
        forgets = count**_BETA2_DECAY
        rate = (whole.norm(parameter) / math.sqrt(size)).clamp(min=_EPS) * min(group["lr"], 1 / math.sqrt(count))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        if gradient.ndim > 1:
            estimate = self._factored(gradient, state, whole, forgets=forgets, smallest=smallest)
        else:
            estimate = state["variance"].lerp_(gradient.square(), forgets).clone()
        update = estimate.clamp_(min=smallest**2).rsqrt_().mul_(gradient)
        divisor = (whole.norm(update) / (math.sqrt(size) * _CLIP)).clamp(min=1.0)
        parameter.sub_(update.mul_(rate / divisor))

    def _new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[parameter]
        state["step"] = torch.zeros(())
        if parameter.ndim > 1:
            state["row_var"] = parameter.new_zeros((*parameter.shape[:-1], 1))
            state["col_var"] = parameter.new_zeros((*parameter.shape[:-2], 1, parameter.shape[-1]))
        else:
            state["variance"] = torch.zeros_like(parameter)
        return state

    def _factored(
        self, gradient: torch.Tensor, state: dict[str, Any], whole: _Whole, *, forgets: float, smallest: float
    ) -> torch.Tensor:
        """Second moments of one matrix or several: the product of both means over one's mean."""
        rows, columns = whole.shape[-2:]
        row, column = gradient.ndim - 2, gradient.ndim - 1
        over_columns, over_rows = (
            whole.added(torch.linalg.vector_norm(gradient, dim=dim, keepdim=True).square(), dim) / size
            for dim, size in ((column, columns), (row, rows))
        )
        row_var, col_var = state["row_var"].lerp_(over_columns, forgets), state["col_var"].lerp_(over_rows, forgets)
        # A row's mean is whole already: only the sum over rows is missing parts of other ranks.
        mean = whole.added(row_var.sum(-2, keepdim=True), row) / rows
        return (row_var @ col_var).div_(mean.clamp_(min=smallest))
