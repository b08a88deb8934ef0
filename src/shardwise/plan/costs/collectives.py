"""Collectives among ranks that share weights or states: their group, and seconds."""

from typing import NamedTuple

from shardwise.plan.rates import RankGroup, group_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.layout.axes import Layout


class MessageTime(NamedTuple):
    """Seconds of collectives: gathering the mean block's weights, again in backward, reducing its gradients; the same
    of what a stage holds before its blocks and beside them (`outer_`); and of its final norm and head."""

    gather: float = 0.0
    again: float = 0.0
    reduce: float = 0.0
    outer_gather: float = 0.0
    outer_reduce: float = 0.0
    outer_again: float = 0.0
    head_gather: float = 0.0
    head_reduce: float = 0.0


NO_MESSAGES = MessageTime()


def shard_group(cluster: Cluster, layout: Layout) -> RankGroup:
    """The ranks among which weights, or states, are cut: see `persistent.shard_degree`."""
    return group_of(cluster, layout, *layout.shards_over)


def replica_group(cluster: Cluster, layout: Layout) -> RankGroup:
    """The ranks that hold copies of the same shard."""
    return group_of(cluster, layout, *layout.copied_over)
