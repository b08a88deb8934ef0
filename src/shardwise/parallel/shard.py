"""ZeRO-2/3 and hybrid sharding through FSDP2: one unit per block, and a root unit with embedding, norm and head.

Frozen and trainable parameters share a unit, so that a LoRA block is gathered in one collective; gradients exist for
the trainable ones only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardwise.spec.layout import Layout


def apply_sharding(
    root: nn.Module,
    *,
    blocks: Sequence[nn.Module],
    mesh: DeviceMesh,
    layout: Layout,
    compute_dtype: torch.dtype,
) -> None:
    """Shards a model in place over `dp_shard`, replicating over `dp_replicate` where that is above 1.

    Gradients are reduced in float32 whatever the compute type: the sum over ranks must not lose what one rank's
    accumulation would keep.
    """
    axes = ("dp_replicate", "dp_shard") if layout.dp_replicate > 1 else ("dp_shard",)
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh[axes], mp_policy=policy, reshard_after_forward=layout.reshard_after_forward)
    # The root's weights are needed last in forward and first in backward: freeing them between would be for nothing.
    fully_shard(root, mesh=mesh[axes], mp_policy=policy, reshard_after_forward=False)
