"""What tensor-parallel ranks draw at random: the same where they hold the same activations, each its own for a slice.

Outside the blocks all ranks of a group hold whole sequences, and their generators stand alike; so what is dropped out
there is the same on all of them, as gradients that are taken in parts want it. Inside a block they hold parts of the
sequence, or some of the heads, and each goes on with a stream of its own, which a draw from the shared one begins. What
an adapter drops out of a gathered sequence, before matrices that are sliced by rows, comes from a third stream, which
the ranks share: each computes slices of one product with it.

A block draws anew when it is computed again, from the state that recompute has put back: so its masks are those of the
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


class Draws:
    """The streams of one block on one rank.

    Args:
        block: whose forward, in training, runs on them.
        mesh: the axis `tp`.
    """

    def __init__(self, block: nn.Module, *, mesh: DeviceMesh) -> None:
        self._rank = mesh.get_local_rank()
        self._seed = 0
        self._shared: torch.Generator | None = None
        block.forward = partial(self._run, block, block.forward)

    def share(self, module: nn.Module) -> None:
        """Makes all ranks drop the same out of what goes into a module, wherever it drops anything."""
        for dropout in module.modules():
            if isinstance(dropout, nn.Dropout):
                vars(dropout)["forward"] = partial(self._drop, dropout)

    def _run(self, block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not block.training:
            return forward(*args, **kwargs)
        self._seed, self._shared = int(torch.randint(2**62, ())), None
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            torch.manual_seed(self._seed + 1 + self._rank)
            return forward(*args, **kwargs)

    def _drop(self, dropout: nn.Dropout, whole: torch.Tensor) -> torch.Tensor:
        """As the module itself does, of activations that are the same on all ranks."""
        if not dropout.training or not dropout.p:
            return whole
        if self._shared is None:
            self._shared = torch.Generator(whole.device).manual_seed(self._seed)
        kept = torch.empty_like(whole, dtype=torch.bool).bernoulli_(1 - dropout.p, generator=self._shared)
        return whole * kept / (1 - dropout.p)
