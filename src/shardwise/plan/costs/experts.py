"""Expert parallelism: tokens that travel to the experts of other ranks and back."""

from dataclasses import replace

from shardwise.plan.rates import Device, group_of
from shardwise.plan.work import Work

#: Passes over memory of the rows that go to experts, in forward and twice that in backward, beyond
#: what a block saves, as `grouped_mm_experts_forward` of transformers 5.23 has them: gathered
#: (read, written), weighted in float32 (read, written twice as wide), brought back into the order
#: of tokens (read so), and added up.
_ROUTED_PASSES = 8.0


def routed_seconds(work: Work, device: Device, tokens: float) -> float:
    """Seconds of a forward in which tokens' rows are brought into the order of experts and back, in
    the mean block of a mixture on GPUs. Processors were probed with all that a step does."""
    if not work.model.has_experts or device.gpu.kind == "cpu":
        return 0.0
    kinds = work.model.kinds
    routes = sum(k.num_layers * max((m.run for m in k.matrices if m.reads == "expert_input"), default=0) for k in kinds)
    rows = tokens * (routes / work.model.num_layers) * work.model.hidden_size
    return device.bytes_moved(_ROUTED_PASSES * rows * work.types.compute)


def dealing(work: Work, tokens: float) -> float:
    """Seconds in which tokens travel to other ranks' experts and back, in the mean block, if all
    are asked alike: a rank sends what a gather would bring it, for each expert of a token."""
    model, layout = work.model, work.execution.layout
    stream = tokens * model.hidden_size * work.types.compute
    routes = sum(k.num_layers * max((m.routed for m in k.matrices if m.stacked), default=0) for k in model.kinds)
    if layout.ep == 1:
        return 0.0
    axis = "dp_shard" if layout.shard_degree > 1 else "dp_replicate"
    group = group_of(work.cluster, replace(layout, **{axis: layout.ep, "cp": 1, "ep": 1}), axis)
    return 2 * routes / model.num_layers * group.gather(stream)
