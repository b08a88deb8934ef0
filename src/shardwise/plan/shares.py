"""The parts of a cluster that a goal looks at beside the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise.plan.products import can_be_formed
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal, Job, LayoutSpec

#: Up to so many GPUs of a node, or nodes, every number is looked at where a goal asks for fewer. Beyond, `fewest-gpus`
#: goes by 128ths, and `cheapest`, which compares all of them in time, by doubling.
_EVERY_NUMBER: dict[Goal, int] = {"fewest-gpus": 1024, "cheapest": 16}
#: 72 is the largest node there is.
_LARGEST_NODE = 72


def parts(job: Job, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, and before it smaller ones where a goal asks for fewer GPUs, the smallest first: numbers of GPUs
    inside a node, then of whole nodes."""
    whole = isinstance(job.layout, LayoutSpec) or cluster.gpu.kind == "cpu"
    if job.goal != "fastest" and not whole:
        inside, nodes = cluster.node.num_gpus, cluster.num_nodes
        for count in _numbers(job.goal, inside if nodes == 1 else inside + 1, every=_LARGEST_NODE):
            yield replace(cluster, node=replace(cluster.node, num_gpus=count), num_nodes=1, network=None)
        counts = _numbers(job.goal, nodes, every=_EVERY_NUMBER[job.goal])[1:]
        yield from (replace(cluster, num_nodes=count) for count in counts)
    yield cluster


def formed_parts(job: Job, cluster: Cluster) -> list[Cluster]:
    """Those of the parts that a stated layout can be formed on; the cluster alone where there are none, which says why.

    Hybrid sharding has no product of 2, 3 or 5 GPUs: a goal that asks for fewer goes by the other numbers.
    """
    return [part for part in parts(job, cluster) if can_be_formed(job, part)] or [cluster]


def _numbers(goal: Goal, most: int, *, every: int) -> list[int]:
    """1, 2, 3, ... below `most`."""
    found: list[int] = []
    number = 1
    while number < most:
        found.append(number)
        beyond = number if goal == "cheapest" else number // 128
        number += 1 if number < every else max(1, beyond)
    return found
