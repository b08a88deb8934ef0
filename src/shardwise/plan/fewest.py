"""The fewest GPUs on which anything fits: parts of a cluster are looked through for one execution that does, and for
nothing else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from shardwise.plan.choices import offloads
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier
from shardwise.plan.products import Choice, layouts
from shardwise.plan.question import Question
from shardwise.plan.shares import formed_parts
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Offload

#: So many parts are looked through before others are compared with one another, which takes longer than a few do.
_AT_FIRST = 8


class Fewest(NamedTuple):
    """The fewest GPUs of a question.

    Attributes:
        part: the smallest on which anything fits with any offload; the whole where no smaller one is.
        notes: with less offload, how many they are, where they are more; and fewer that only the host is too small for.
    """

    part: Cluster
    notes: tuple[str, ...]


class Refused(NamedTuple):
    """A part of whose GPUs something fits, and why the host is too small for it."""

    part: Cluster
    reason: str


def fewest(question: Question, *, prune: bool = True, hopeless: Container[Offload] = ()) -> Fewest:
    """The smallest part of a question's cluster that anything fits on, whatever offload that takes.

    Args:
        question: what is asked, with the offload that is meant.
        prune: leave out what a bound rules out.
        hopeless: offloads with which nothing is known to fit on any part.
    """
    part, larger = question.cluster, list[tuple[Explorer, Cluster]]()
    refused = list[Refused]()
    for offload in offloads(question.job, question.cluster):
        if offload in hopeless:
            continue
        explorer = Explorer(question.with_offload(offload), prune=prune, timed=False)
        part = smallest_that_fits(explorer, below=part, refused=refused)
        larger.append((explorer, part))
    less = ((one, size) for one, size in larger if size != part)
    note = next((_note(*one) for one in less if one[1] != question.cluster or _fits_on(*one)), None)
    fewer = (one for one in refused if one.part.num_gpus < part.num_gpus)
    smallest = min(fewer, key=lambda one: one.part.num_gpus, default=None)
    host = smallest and f"on {smallest.part.name} {smallest.reason}"
    return Fewest(part, tuple(filter(None, [note, host])))


def _note(explorer: Explorer, part: Cluster) -> str:
    offload = explorer.question.job.train.offload
    how = "without offload" if offload == "none" else f"with no more than offload {offload}"
    return f"{how} the fewest GPUs are {part.num_gpus}; to have those, state train.offload: {offload}"


def smallest_that_fits(
    explorer: Explorer, *, below: Cluster | None = None, refused: list[Refused] | None = None
) -> Cluster:
    """The smallest part of a question's cluster that anything fits on; the whole of it where no smaller one is.

    Args:
        explorer: of the question, which states an offload.
        below: another part, which takes the place of the whole.
        refused: takes what was found to fit the GPUs of a smaller part and not its host.
    """
    job, whole = explorer.question.job, below or explorer.question.cluster
    each = (part for part in formed_parts(job, explorer.question.cluster) if part.num_gpus < whole.num_gpus)
    smaller = [part for part in each if explorer.has_room(part)]
    return next((part for part in _likely(explorer, smaller) if _fits_on(explorer, part, refused)), whole)


def _likely(explorer: Explorer, smaller: Sequence[Cluster]) -> Iterator[Cluster]:
    """Those of some parts that may hold something, the smallest first."""
    yield from smaller[:_AT_FIRST]
    if not explorer.prunes or explorer.question.job.stated_layout is not None:
        yield from smaller[_AT_FIRST:]
        return
    begin = _AT_FIRST
    while begin < len(smaller):  # twice as many at a time: what is found on few has the others not looked at
        yield from _that_may_hold(explorer, smaller[begin : 2 * begin])
        begin *= 2


def _that_may_hold(explorer: Explorer, some: Sequence[Cluster]) -> list[Cluster]:
    frontier, opener = Frontier(explorer.question, explorer.bounds, some), explorer.opener
    families = (
        opener.of_interest(frontier.of(strategy), strategy=strategy, enough=None) for strategy in frontier.strategies
    )
    may_hold = {family.cluster.num_gpus for found in families for family in found.values()}
    return [part for part in some if part.num_gpus in may_hold]


def _fits_on(explorer: Explorer, part: Cluster, refused: list[Refused] | None = None) -> bool:
    """Whether the host has room is asked of what fits the GPUs, which is less."""
    opened, question = explorer.effort.open, explorer.question
    on_gpus = (
        choice
        for choice in layouts(question.job, question.model, part)
        if explorer.why_left_out(choice, host=False) is None
        for group in explorer.groups(choice)
        if explorer.fits([group])
    )
    fits = any(_has_host(explorer, choice, refused) for choice in on_gpus)
    explorer.effort.open = opened  # what is open is what is on the part that is chosen
    return fits


def _has_host(explorer: Explorer, choice: Choice, refused: list[Refused] | None) -> bool:
    reason = explorer.why_left_out(choice)
    if reason is not None and refused is not None:
        refused.append(Refused(choice.cluster, reason))
    return reason is None
