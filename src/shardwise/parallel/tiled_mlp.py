"""MLPs and norms that are computed some positions at a time (`train.mlp: chunked`): they save what
they read, once.

Both treat each position by itself. Forward keeps its input alone, and backward makes one tile
again, takes its gradients and lets go of it. Where its block is computed again
(`parallel/recompute.py`) nothing but the block's result depends on what the MLP gives, so that it
is not made once more for that.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn

from shardwise.parallel.recompute import is_again

Forward = Callable[[torch.Tensor], torch.Tensor]


def apply_tiles(modules: Iterable[nn.Module], *, size: int, ends_block: bool = False) -> None:
    """Replaces the forward of modules that treat each position of [batch, length, ...] by itself.
    `size`: positions at once; `ends_block`: blocks save nothing of what it gives."""
    for module in modules:
        vars(module)["forward"] = Tiled(module, size=size, ends_block=ends_block)


class Tiled:
    """The forward of one module, tile by tile."""

    def __init__(self, module: nn.Module, *, size: int, ends_block: bool) -> None:
        self.one: Forward = module.forward
        self.size, self.ends_block = size, ends_block
        self.made_type: torch.dtype | None = None
        self._module = [module]

    @torch.compiler.disable
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of [batch, length, ...]."""
        trained = [parameter for parameter in self._module[0].parameters() if parameter.requires_grad]
        if not torch.is_grad_enabled() or not (hidden.requires_grad or trained):
            return self.forward(hidden)
        return cast(torch.Tensor, _Tiles.apply(self, hidden, *trained))

    def tiles(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Views of [batch, length, ...], each [1, size, ...] or, the last, less."""
        return tensor.flatten(0, 1).unsqueeze(0).split(self.size, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Without gradients."""
        if self.ends_block and self.made_type is not None and is_again():
            # Nobody reads it. If read, its gradients would be NaN and the step would not be taken.
            return hidden.new_full((), torch.nan, dtype=self.made_type).expand(hidden.shape)
        first, *others = self.tiles(hidden)
        given = self.one(first)
        made, self.made_type = hidden.new_empty(hidden.shape, dtype=given.dtype), given.dtype
        places = self.tiles(made)
        places[0].copy_(given)
        for place, tile in zip(places[1:], others, strict=True):
            place.copy_(self.one(tile))
        return made


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiled: Tiled, hidden: torch.Tensor, *trained: nn.Parameter) -> torch.Tensor:
        kind = hidden.device.type
        ctx.tiled, ctx.trained = tiled, trained
        ctx.autocast = {"enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}
        ctx.save_for_backward(hidden)
        return tiled.forward(hidden)

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (hidden,) = ctx.saved_tensors
        tiled, trained = cast(Tiled, ctx.tiled), [p for p in ctx.trained if p.requires_grad]
        back = hidden.new_empty(hidden.shape) if ctx.needs_input_grad[1] else None
        sums: list[torch.Tensor] = []
        with torch.autocast(hidden.device.type, **ctx.autocast):
            pairs = zip(tiled.tiles(hidden), tiled.tiles(given), strict=True)
            for at, (tile, gradient) in enumerate(pairs):
                # Computed again, one tile at a time: no more than one tile's graph is alive.
                with torch.enable_grad():
                    read = tile.detach().requires_grad_(back is not None)
                    made = tiled.one(read)
                inputs = [*trained, *([read] if back is not None else [])]
                found = list(torch.autograd.grad(made, inputs, gradient, materialize_grads=True))
                del made
                if back is not None:
                    tiled.tiles(back)[at].copy_(found.pop())
                if sums:
                    torch._foreach_add_(sums, found)  # pyright: ignore[reportPrivateImportUsage]
                else:
                    sums = found
        return None, back, *sums
