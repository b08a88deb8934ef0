"""Compiles each decoder block's forward: blocks of one kind share a graph, hooks stay outside.

A block is compiled for the length that it meets first, and once more, for any length, when it meets
another.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy

#: torch's compiler of graphs.
BACKEND = "inductor"
#: Graphs of one function, above which torch runs it eagerly: for each kind of block one with and
#: one without gradients, of a fixed and of any length.
_MOST_GRAPHS = 64


def apply_compile(blocks: Iterable[nn.Module]) -> None:
    """Replaces the forward of each block by its compiled self, compiled when it is first called."""
    from torch._dynamo import config
    from torch._functorch import config as partitioner
    from torch._inductor import config as inductor
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class SaveCasts(CustomGraphPass):
        """`save_casts`, known to inductor's cache of graphs by this file."""

        def __call__(self, graph: Graph) -> None:
            save_casts(graph)

        def uuid(self) -> bytes:
            return get_hash_for_files((__file__,))

    config.recompile_limit = max(config.recompile_limit, _MOST_GRAPHS)
    # DDP would cut a block's graph wherever a bucket ends, and what crosses a cut is kept for
    # backward. Buckets leave between blocks anyway.
    config.optimize_ddp = False
    # Norms, what activations give, and what adapters read after dropout are made again for the
    # products of the backward: a third less is saved. Weights are not cast again.
    partitioner.ban_recompute_materialized_backward = False
    partitioner.ban_recompute_used_far_apart = False
    inductor.joint_custom_pre_pass = SaveCasts()
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=BACKEND)


def save_casts(graph: Graph) -> None:
    """Has the partitioner save graph inputs that the forward casts to a narrower type: weights."""
    for cast in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        given = cast.args[0]
        narrows = cast.meta["val"].element_size() < given.meta["val"].element_size()
        if given.name.startswith("primals") and narrows and "recompute" not in cast.meta:
            cast.meta["recompute"] = CheckpointPolicy.MUST_SAVE
