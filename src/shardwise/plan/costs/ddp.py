"""DDP: a bucket of gradients for each block, reduced beside the backward of earlier ones."""

from shardwise.plan.costs.piece import MessageTime
from shardwise.plan.rates import group_of
from shardwise.plan.work import Outer, Scene, Work


def bucket_bytes(scene: Scene) -> float:
    """Gradients in the buckets of data parallelism, which stay between steps."""
    return scene.holding.gradients if scene.work.replicated else 0


def reduced_messages(work: Work, *, outer: Outer) -> MessageTime:
    """What DDP sends in the last backward: a bucket for each block, in the gradients' own type."""
    width = work.types.trainable
    group = group_of(work.cluster, work.execution.layout, "dp_replicate", "dp_shard")
    return MessageTime(
        reduce=group.all_reduce(work.trained_of_mean * width),
        outer_reduce=group.all_reduce(outer.rest.trained_elements * width),
        head_reduce=group.all_reduce(outer.head.trained_elements * width),
    )
