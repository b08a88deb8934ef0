"""Random number streams of dropout under tensor parallelism.

Outside the blocks, ranks of a tensor-parallel group share one stream. Inside a block each holds its own slice and has
its own stream, seeded from the shared one; adapters drop out of gathered activations, by a third that ranks share.
Recompute restores the generator's state, so masks of a recomputed block are those of its forward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


class RandomStreams:
    """The random streams of one block on one rank, used by its forward in training; `mesh` is the axis `tp`."""

    def __init__(self, block: nn.Module, *, mesh: DeviceMesh) -> None:
        self._rank = mesh.get_local_rank()
        self._seed = 0
        self._shared: torch.Generator | None = None
        block.forward = partial(self._run, block, block.forward)

    def share(self, module: nn.Module) -> None:
        """Makes all ranks draw the same dropout masks inside a module."""
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
        """Dropout with the stream that the ranks share."""
        if not dropout.training or not dropout.p:
            return whole
        if self._shared is None:
            self._shared = torch.Generator(whole.device).manual_seed(self._seed)
        kept = torch.empty_like(whole, dtype=torch.bool).bernoulli_(1 - dropout.p, generator=self._shared)
        return whole * kept / (1 - dropout.p)
