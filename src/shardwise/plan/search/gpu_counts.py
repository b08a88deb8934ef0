"""How many GPUs of a cluster to take: the parts that a goal looks at, and the best of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from shardwise.plan.search.executions import offloads
from shardwise.plan.search.goals import least_of, tie_of
from shardwise.plan.search.layouts import can_be_formed
from shardwise.plan.search.question import Question
from shardwise.plan.search.search import Search
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Goal, Job, LayoutSpec

#: Up to so many nodes, or GPUs of a node, every number is looked at, and beyond they grow by such a
#: part. `cheapest` forecasts times on all of them, which numbers in between hardly change.
_STEPS: dict[Goal, tuple[int, int]] = {"cheapest": (8, 1), "fewest-gpus": (256, 64)}


def parts(job: Job, cluster: Cluster) -> Iterator[Cluster]:
    """The parts of a cluster that a goal looks at, smallest first: in a node, then whole nodes."""
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


def _numbers(most: int, every: int, step: int) -> list[int]:
    """1, 2, 3, ... below `most`."""
    found: list[int] = []
    number = 1
    while number < most:
        found.append(number)
        number += 1 if number < every else number // step
    return found


def best_part(question: Question) -> tuple[Cluster, Sequence[str]]:
    """The part of a cluster to plan for, the whole where nothing fits; and notes to the reasons."""
    if question.job.goal == "fewest-gpus":
        return _fewest(question)
    return (_cheapest(question) if question.job.goal == "cheapest" else question.cluster), ()


def _cheapest(question: Question) -> Cluster:
    """The part on which a step takes the fewest GPU seconds; of a tie the smaller."""
    for offload in offloads(question.job, question.cluster):
        cheapest, gpu_seconds = None, inf
        for part in formed_parts(question.job, question.cluster):
            search = Search(replace(question, cluster=part).with_offload(offload))
            if search.something_fits():
                search.look(limit=gpu_seconds / part.num_gpus / (1 + tie_of(part.gpu)), all_strategies=False)
            if search.found:
                cheapest, gpu_seconds = part, least_of(search.found, goal="cheapest", cluster=part)
        if cheapest is not None:
            return cheapest
    return question.cluster


def _fewest(question: Question) -> tuple[Cluster, Sequence[str]]:
    """The smallest part on which anything fits, with any offload; and its GPUs with less."""
    each = ((smallest_that_fits(question.with_offload(one)), one) for one in offloads(question.job, question.cluster))
    fits = [(part, offload) for part, offload in each if part is not None]
    if not fits:
        return question.cluster, ()
    taken, _ = min(fits, key=lambda one: one[0].num_gpus)
    part, offload = fits[0]
    if part == taken:
        return taken, ()
    how = "without offload" if offload == "none" else f"with no more than offload {offload}"
    return taken, (f"{how} the fewest GPUs are {part.num_gpus}; to have those, state train.offload: {offload}",)


def smallest_that_fits(question: Question) -> Cluster | None:
    """The smallest part on which anything fits with the stated offload; None if there is none."""
    parts = formed_parts(question.job, question.cluster)
    return next((part for part in parts if Search(replace(question, cluster=part)).something_fits()), None)
