"""The order in which a model is spread. The order is the content of this file.

    recompute -> compile -> shard -> materialise -> replicate

The model does not know that it is parallel, and the loop does not know how: it calls the module that comes out, and
asks `synchronise` whether gradients are to be reduced after this backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardwise.parallel.ddp import apply_replication
from shardwise.parallel.mesh import World
from shardwise.parallel.recompute import apply_recompute
from shardwise.parallel.shard import apply_sharding
from shardwise.spec.layout import Execution


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A model that is spread.

    Attributes:
        module: call this; it takes and returns what the root did.
        gradient_divisor: what gradients are divided by when they are reduced over ranks; multiply the loss by it to
            get their sum.
    """

    module: nn.Module
    gradient_divisor: int

    def synchronise(self, last: bool) -> AbstractContextManager[None]:
        """Context of one micro-batch: replicated gradients are reduced once, after the last one.

        Sharded gradients are reduced every time: what is saved by deferring them would be paid with a whole copy.
        """
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()  # pyright: ignore[reportReturnType]
        return nullcontext()


def parallelize(
    root: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    execution: Execution,
    world: World,
    compute_dtype: torch.dtype,
    materialise: Callable[[], None],
) -> Spread:
    """Spreads a model whose parameters are on the meta device.

    Args:
        root: the module whose forward is called; holds all parameters.
        blocks: its decoder blocks, the units of recompute, compilation and sharding.
        execution: layout and options; the trainer has refused what is not supported before.
        world: the mesh.
        compute_dtype: type in which sharded weights are gathered.
        materialise: gives the (by then sharded) parameters their values.
    """
    layout = execution.layout

    # Recompute first: it wraps the block's own forward, inside everything that gathers or compiles it.
    apply_recompute(blocks, execution.gradient_checkpointing)

    # Compile per block, with the recomputation inside the graph and the gathers outside.
    if execution.compile:
        for block in blocks:
            block.compile()

    # Shard on the meta device, so that no rank ever holds more than its own slices ...
    if layout.weight_shards > 1:
        apply_sharding(root, blocks=blocks, mesh=world.mesh, layout=layout, compute_dtype=compute_dtype)

    # ... which are read here.
    materialise()

    # Replicate last: buckets are made of real gradients. (ZeRO-1 is this, with an optimizer that steps windows.)
    if layout.weight_shards == 1 and layout.data_world_size > 1:
        root = apply_replication(root, group=world.data_group, device=world.device)

    return Spread(module=root, gradient_divisor=layout.data_world_size)
