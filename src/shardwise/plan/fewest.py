"""The fewest GPUs on which anything fits: parts of a cluster are looked through for one execution that does, and for
nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier
from shardwise.plan.products import layouts
from shardwise.plan.shares import formed_parts
from shardwise.spec.cluster import Cluster

#: So many parts are looked through before all others are compared with one another, which takes longer than a few do.
_AT_FIRST = 8


def smallest_that_fits(explorer: Explorer) -> Cluster:
    """The smallest part of a question's cluster that anything fits on; the whole of it where no smaller one is."""
    job, cluster = explorer.question.job, explorer.question.cluster
    smaller = [part for part in formed_parts(job, cluster) if part != cluster and explorer.has_room(part)]
    return next((part for part in _likely(explorer, smaller) if _fits_on(explorer, part)), cluster)


def _likely(explorer: Explorer, smaller: Sequence[Cluster]) -> Iterator[Cluster]:
    """Those of some parts that may hold something, the smallest first."""
    yield from smaller[:_AT_FIRST]
    others, question = smaller[_AT_FIRST:], explorer.question
    if not explorer.prunes or question.job.stated_layout is not None:
        yield from others
    elif others:
        frontier, opener = Frontier(question, explorer.bounds, others), explorer.opener
        families = (
            opener.of_interest(frontier.of(strategy), strategy=strategy, enough=None)
            for strategy in frontier.strategies
        )
        may_hold = {family.cluster.num_gpus for found in families for family in found.values()}
        yield from (part for part in others if part.num_gpus in may_hold)


def _fits_on(explorer: Explorer, part: Cluster) -> bool:
    """Whether the host has room is asked of what fits the GPUs, which is less."""
    opened, question = explorer.effort.open, explorer.question
    fits = any(
        explorer.fits([group]) and explorer.why_left_out(choice) is None
        for choice in layouts(question.job, question.model, part)
        if explorer.why_left_out(choice, host=False) is None
        for group in explorer.groups(choice)
    )
    explorer.effort.open = opened  # what is open is what is on the part that is chosen
    return fits
