"""The parts of a cluster that a goal looks at beside the whole of it."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.plan.search.layouts import can_be_formed
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal, Job, LayoutSpec

#: Up to so many nodes, or GPUs of a node, every number is looked at, and beyond they grow by such a part. The plan says
#: so. `cheapest` forecasts times on all of them, which numbers in between hardly change.
_STEPS: dict[Goal, tuple[int, int]] = {"cheapest": (8, 1), "fewest-gpus": (1024, 128)}
#: The largest node there is.
_LARGEST_NODE = 72


def parts(job: Job, cluster: Cluster) -> Iterator[Cluster]:
    """The parts of a cluster that a goal looks at, the smallest first: GPUs inside a node, then whole nodes."""
    whole = isinstance(job.layout, LayoutSpec) or cluster.gpu.kind == "cpu"
    if job.goal != "fastest" and not whole:
        inside, nodes = cluster.node.num_gpus, cluster.num_nodes
        for count in _numbers(inside if nodes == 1 else inside + 1, *_STEPS[job.goal]):
            yield cluster.part(count)
        yield from (cluster.part(count * inside) for count in _numbers(nodes, *_STEPS[job.goal])[1:])
    yield cluster


def formed_parts(job: Job, cluster: Cluster) -> list[Cluster]:
    """The parts on which a stated layout can be formed; the cluster alone where there are none."""
    return [part for part in parts(job, cluster) if can_be_formed(job, part)] or [cluster]


def numbers_passed_over(job: Job, cluster: Cluster) -> str | None:
    """A sentence where a goal asks for fewer GPUs and not every number is looked at; None where every one is."""
    if job.goal == "fastest" or isinstance(job.layout, LayoutSpec):
        return None
    for most, unit in ((cluster.num_nodes, "nodes"), (cluster.node.num_gpus, "GPUs")):
        every, step = _STEPS[job.goal]
        if most > every:
            return (
                f"not every number of {unit} was looked at: beyond {every:,} {_grow(step)}, and one in "
                f"between may suit {job.goal} better"
            )
    return None


def _grow(step: int) -> str:
    return "they double" if step == 1 else f"they go in steps of 1/{step}"


def _numbers(most: int, every: int, step: int) -> list[int]:
    """1, 2, 3, ... below `most`."""
    found: list[int] = []
    number = 1
    while number < most:
        found.append(number)
        number += 1 if number < every else number // step
    return found


def rounder_parts(cluster: Cluster) -> list[Cluster]:
    """Parts whose number of GPUs has more divisors, where the cluster's is no power of two: every smaller number in one
    node, of several nodes the next power of two."""
    inside, nodes = cluster.node.num_gpus, cluster.num_nodes
    split = nodes if nodes > 1 else inside
    if cluster.gpu.kind == "cpu" or not split & (split - 1):
        return []
    if nodes > 1:
        return [cluster.part(inside << (nodes.bit_length() - 1))]
    return [cluster.part(count) for count in range(2, min(inside, _LARGEST_NODE))]
