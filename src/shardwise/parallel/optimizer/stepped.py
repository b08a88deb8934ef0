"""What the optimizer steps: local parts of parameters, or stand-ins for these (rows, host copies).

All of it is plain tensors: a step of DTensors takes several times as long, and most optimizers are
elementwise. A detour maps parameters to parts of the same names. It passes gradients on before a
step and values back after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from shardwise.parallel.ownership import local_part, sharded_dims

Named = list[tuple[str, nn.Parameter]]

#: bitsandbytes keeps the levels of its 8-bit numbers with each state.
CONSTANTS = "qmap"
#: Adafactor's means, by the dim that they are taken over.
_MEANS_OVER = {"row_var": -1, "col_var": -2}
#: bitsandbytes' scales of blocks.
_SCALES = "absmax"


class Detour:
    """Maps parameters to those that are stepped in their place. `named`: plain local parts, by the
    names of the originals; `placed`: for each, a tensor with its global shape and placement."""

    named: Named
    placed: list[Tensor]

    def before_step(self) -> None:
        """Passes gradients to the stand-ins."""

    def after_step(self) -> None:
        """Passes values back, and clears gradients."""

    def reread(self) -> None:
        """Copies values that were set other than by a step."""


class LocalParts(Detour):
    """Local parts of parameters, sharing memory: the first detour. A plain one is its own part."""

    def __init__(self, trained: Named) -> None:
        self.placed: list[Tensor] = [parameter for _, parameter in trained]
        self._sharded = [(p, nn.Parameter(local_part(p))) for _, p in trained if isinstance(p, DTensor)]
        parts = {id(sharded): part for sharded, part in self._sharded}
        self.named: Named = [(name, parts.get(id(p), p)) for name, p in trained]

    @torch.no_grad()
    def before_step(self) -> None:
        """Hands gradients on; where there is none, the part's stays, as a step of zeros sets it."""
        self.reread()
        for sharded, part in self._sharded:
            if sharded.grad is not None:
                part.grad, sharded.grad = local_part(sharded.grad), None

    @torch.no_grad()
    def reread(self) -> None:
        """Finds parts again: FSDP2's first forward moves them to padded or page-locked memory."""
        for sharded, part in self._sharded:
            part.data = sharded.to_local()


def _with_place(state: Tensor, key: str, placed: Tensor) -> tuple[Tensor, Tensor]:
    """A state with a row for each parameter row; a tensor with its global shape and placement."""
    if key.startswith(_SCALES):
        state = state.view(*local_part(placed).shape[:-1], -1)
        return state, _placed(state, placed, last=state.shape[-1] * placed.shape[-1] // local_part(placed).shape[-1])
    if key in _MEANS_OVER:
        return state, _placed(state, placed, over=_MEANS_OVER[key] % placed.ndim)
    return state, placed if state.ndim else state


def _placed(state: Tensor, like: Tensor, *, over: int | None = None, last: int | None = None) -> Tensor:
    """A tensor placed as another, with one element in the dim `over`, or another `last` dim."""
    if not isinstance(like, DTensor):
        return state
    shape, placements = [*like.shape[:-1], like.shape[-1] if last is None else last], list(like.placements)
    if over is not None:
        shape[over] = 1
        cuts = {axis for axis, dim in sharded_dims(like).items() if dim == over}
        placements = [Replicate() if axis in cuts else one for axis, one in enumerate(placements)]
    stride = torch.empty(shape, device="meta").stride()
    mesh, size = like.device_mesh, torch.Size(shape)
    return DTensor.from_local(state, mesh, placements, run_check=False, shape=size, stride=stride)


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """The optimizer's parameters, behind detours that are applied in their order."""

    detours: tuple[Detour, ...]

    @property
    def named(self) -> Named:
        """The optimizer's parameters by name."""
        return self.detours[-1].named

    def states(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, Tensor, Tensor]]:
        """Each tensor of the optimizer's states: the name of its weight, its key, itself, and a
        tensor with its global shape and placement. A count of steps is placed nowhere."""
        for (name, parameter), placed in zip(self.named, self.detours[-1].placed, strict=True):
            for key, state in optimizer.state.get(parameter, {}).items():
                if isinstance(state, Tensor) and not key.startswith(CONSTANTS):
                    yield name, key, *_with_place(state, key, placed)

    def wholes(self) -> dict[Tensor, Tensor]:
        """For each of the optimizer's parameters a tensor with its global shape and placement."""
        return {p: placed for (_, p), placed in zip(self.named, self.detours[-1].placed, strict=True)}

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Registers the detours as hooks around every step of the optimizer."""
        for detour in self.detours:
            optimizer.register_step_pre_hook(lambda *_, detour=detour: detour.before_step())
        # Values go back by the way that gradients came.
        for detour in reversed(self.detours):
            optimizer.register_step_post_hook(lambda *_, detour=detour: detour.after_step())

    def reread(self) -> None:
        """To be called after weights were set other than by a step."""
        for detour in self.detours:
            detour.reread()
