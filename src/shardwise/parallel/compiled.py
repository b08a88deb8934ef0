"""Compiles the forward of each decoder block, so that blocks of one kind share a graph and hooks stay outside of it.

A block is compiled for the length that it meets first, and once more, for any length, when it meets another.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

#: torch's compiler of graphs.
BACKEND = "inductor"
#: Graphs of one function, above which torch runs it eagerly: for each kind of block one with and one without gradients,
#: of a fixed and of any length.
_MOST_GRAPHS = 64


def apply_compile(blocks: Iterable[nn.Module]) -> None:
    """Replaces the forward of each block by its compiled self; it is compiled when it is first called."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, _MOST_GRAPHS)
    # DDP would cut a block's graph wherever a bucket ends, and what crosses a cut is kept for backward. Buckets leave
    # between blocks anyway.
    config.optimize_ddp = False
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=BACKEND)
