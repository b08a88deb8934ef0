"""Gradients that DDP reduces beside the backward, a bucket for each block, or that are summed after
a step's last backward, where FSDP has not done it."""

from shardwise.plan.costs.piece import NO_TIME, MessageTime, RankTime
from shardwise.plan.rates import RankGroup, group_of
from shardwise.plan.work import REDUCTION_BYTES, Outer, Scene, Work
from shardwise.spec.layout.execution import FLAT_BYTES


def all_reduce_buffer(scene: Scene) -> float:
    """The buffer to sum gradients over replicas after the last backward, without DDP and FSDP."""
    work = scene.work
    layout = work.execution.layout
    if work.sharded or work.replicated or layout.copies * layout.shard_degree * layout.tp == 1:
        return 0
    return min(scene.holding.gradients, max(FLAT_BYTES, scene.part.largest_trained * work.types.trainable))


def late_reduction(work: Work, trained: float) -> RankTime:
    """Gradients that backward did not reduce: of replicas without DDP, of rings, and postponed
    ones; in a pipeline also what stages' last backwards reduce."""
    layout = work.execution.layout
    held, whole = trained * work.types.trainable, trained * REDUCTION_BYTES
    over_replicas = group_of(work.cluster, layout, *layout.copied_over).all_reduce(whole / layout.shard_degree)
    if work.execution.postpones_reduction or (work.execution.reduce_once and layout.pp > 1):
        seconds = group_of(work.cluster, layout, *layout.shards_over).scatter(whole) + over_replicas
    elif work.execution.adds_replicas_once and layout.pp > 1:
        seconds = over_replicas
    elif work.sharded or work.replicated:
        seconds = 0.0
    else:
        seconds = group_of(work.cluster, layout, "dp_replicate", "dp_shard", "cp").all_reduce(held)
    return RankTime(seconds, 0.0, seconds)


def sum_of_ends(work: Work) -> RankTime:
    """A trained tied weight lies at both ends of a pipeline, which add up their gradients."""
    layout = work.execution.layout
    if layout.pp == 1 or not work.inventory.tied:
        return NO_TIME
    trained = sum(t.elements for t in work.inventory.root.tensors if t.name == "embedding" and t.trained)
    held = trained * work.types.trainable / layout.tp / layout.weight_shards
    pipe = group_of(work.cluster, layout, "pp")
    seconds = RankGroup(size=2, link=pipe.hop or pipe.link).all_reduce(held)
    return RankTime(seconds, 0.0, seconds)


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
