"""Expert parallelism: tokens that travel to the experts of other ranks and back."""

from __future__ import annotations

from dataclasses import replace

from shardwise.plan.rates import group_of
from shardwise.plan.work import Work


def dealing(work: Work, tokens: float) -> float:
    """Seconds in which tokens travel to the experts of other ranks and back, in the mean block, where all experts are
    asked alike: a rank sends what a gather would bring it, for each expert that a token goes to."""
    model, layout = work.model, work.execution.layout
    stream = tokens * model.hidden_size * work.types.compute
    routes = sum(k.num_layers * max((m.routed for m in k.matrices if m.stacked), default=0) for k in model.kinds)
    if layout.ep == 1:
        return 0.0
    axis = "dp_shard" if layout.shard_degree > 1 else "dp_replicate"
    group = group_of(work.cluster, replace(layout, **{axis: layout.ep, "cp": 1, "ep": 1}), axis)
    return 2 * routes / model.num_layers * group.gather(stream)
