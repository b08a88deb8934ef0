"""How many GPUs of a cluster to take: loops over its parts, for goals that ask for fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from shardwise.plan.search.executions import offloads
from shardwise.plan.search.goals import figure_of, tie_of
from shardwise.plan.search.gpu_counts import formed_parts
from shardwise.plan.search.question import Question
from shardwise.plan.search.search import Search
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Offload


def best_part(question: Question) -> tuple[Cluster, Sequence[str]]:
    """The part of a cluster to plan for, the whole where nothing fits; and notes to the reasons."""
    match question.job.goal:
        case "fastest":
            return question.cluster, ()
        case "cheapest":
            return _cheapest(question), ()
        case "fewest-gpus":
            return _fewest(question)


def _cheapest(question: Question) -> Cluster:
    """The part on which a step takes the fewest GPU seconds; of a tie the smaller."""
    for offload in offloads(question.job, question.cluster):
        cheapest, gpu_seconds = None, inf
        for part in formed_parts(question.job, question.cluster):
            search = Search(replace(question, cluster=part).with_offload(offload))
            if search.something_fits():
                search.look(limit=gpu_seconds / part.num_gpus / (1 + tie_of(part.gpu)), all_strategies=False)
            if search.found:
                cheapest, gpu_seconds = part, min(figure_of("cheapest", one) for one in search.found)
        if cheapest is not None:
            return cheapest
    return question.cluster


def _fewest(question: Question) -> tuple[Cluster, Sequence[str]]:
    """The smallest part on which anything fits, with any offload; and how many GPUs it takes with less."""
    fits: list[tuple[Cluster, Offload]] = []
    for offload in offloads(question.job, question.cluster):
        part = smallest_that_fits(question.with_offload(offload))
        if part is not None:
            fits.append((part, offload))
    if not fits:
        return question.cluster, ()
    taken, _ = min(fits, key=lambda one: one[0].num_gpus)
    part, offload = fits[0]
    return taken, (_note(offload, part),) if part != taken else ()


def _note(offload: Offload, part: Cluster) -> str:
    how = "without offload" if offload == "none" else f"with no more than offload {offload}"
    return f"{how} the fewest GPUs are {part.num_gpus}; to have those, state train.offload: {offload}"


def smallest_that_fits(question: Question) -> Cluster | None:
    """The smallest part on which anything fits with the offload that a question states; None where there is none."""
    parts = formed_parts(question.job, question.cluster)
    return next((part for part in parts if Search(replace(question, cluster=part)).something_fits()), None)
