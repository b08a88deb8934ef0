"""ZeRO-1: after a step every rank has its rows of all weights, and hands them to the others."""

from shardwise.plan.costs.piece import NO_TIME, RankTime
from shardwise.plan.rates import group_of
from shardwise.plan.work import Scene, Work
from shardwise.spec.layout.execution import FLAT_BYTES


def all_gather_buffer(scene: Scene) -> float:
    """Buffers of a message of new weights: all rows, gloo's copy of them, and this rank's own."""
    layout, part = scene.work.execution.layout, scene.part
    if not layout.shards_states_only:
        return 0
    message = min(FLAT_BYTES, part.inventory.trained_elements * scene.work.types.trainable)
    return message * (1 + 1 / layout.shard_degree + (not scene.work.setting.cuda))


def late_gather(work: Work, trained: float) -> RankTime:
    """Under ZeRO-1 each rank has renewed its rows of every weight, and sends them to the others."""
    layout = work.execution.layout
    if not layout.shards_states_only:
        return NO_TIME
    seconds = group_of(work.cluster, layout, *layout.shards_over).exchange(trained * work.types.trainable)
    return RankTime(seconds, 0.0, seconds)
