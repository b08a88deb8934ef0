"""Whether anything of a question fits, and what is missing where nothing does; nothing is timed but what must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from shardwise.plan.choices import offloads
from shardwise.plan.explorer import Explorer
from shardwise.plan.groups import Group
from shardwise.plan.host import host_has_room
from shardwise.plan.lacks import why_not
from shardwise.plan.products import layouts
from shardwise.plan.prospects import Prospects
from shardwise.plan.question import Question
from shardwise.plan.shares import formed_parts
from shardwise.plan.work import Work
from shardwise.spec.layout import Layout
from shardwise.spec.plan import MemoryForecast

#: Which layouts are of interest.
Admits = Callable[[Layout], bool]
#: Whether something fits with an offload, on so many nodes of so many GPUs.
Known = dict[tuple[str, int, int], bool]


def every_layout(_: Layout) -> bool:
    """All of them are."""
    return True


def without_pipelines(layout: Layout) -> bool:
    """On many GPUs pipelines are most of what there is, and hold no less than shards do."""
    return layout.pp == 1


def can_be_planned(
    question: Question, *, admits: Admits = every_layout, known: Known | None = None, prospects: Prospects | None = None
) -> bool:
    """Whether the plan of a question chooses something, on the hardware or on a part of it that the goal looks at.

    The smallest micro-batch and the largest, which needs no accumulation, are looked at. Between them only one that
    holds its logits in another way can fit where they do not, which nothing looks for.

    Args:
        question: what is asked.
        admits: which layouts are of interest.
        known: what was found out about parts of other sizes of the same hardware; remembers what is found.
        prospects: of the same question, with a stated offload, on at least as much of the same hardware.
    """
    known = {} if known is None else known

    def fits_on(asked: Question) -> bool:
        key = (asked.job.train.offload, asked.cluster.num_nodes, asked.cluster.node.num_gpus)
        if key not in known:
            known[key] = something_fits(asked, admits=admits, prospects=prospects)
        return known[key]

    for offload in offloads(question.job, question.cluster):
        asked = question.with_offload(offload)
        on_parts = (replace(asked, cluster=part) for part in reversed(formed_parts(asked.job, asked.cluster)))
        if any(map(fits_on, on_parts)):
            return True
    return False


def something_fits(question: Question, *, admits: Admits = every_layout, prospects: Prospects | None = None) -> bool:
    """Whether any execution on all of the hardware fits, with the offload that the job states.

    Args:
        question: what is asked.
        admits: which layouts are of interest.
        prospects: of the same question on at least as much of the same hardware, where others were asked before.
    """
    prospects = prospects or Prospects(question)
    promising = (choice for choice in prospects.layouts(question.cluster) if admits(choice.layout))
    first = next(promising, None)
    if first is None:
        return False
    explorer = Explorer(question, timed=False, host_last=True)
    if not (explorer.has_room(question.cluster) and host_has_room(question)):
        return False
    return any(
        explorer.fits([group])
        for choice in chain([first], promising)
        if explorer.why_left_out(choice) is None
        for group in explorer.groups(choice)
        if prospects.may_fit(group.base)
    )


def what_is_missing(question: Question, *, admits: Admits = every_layout) -> str:
    """Why nothing fits on all of the hardware: of the execution that needs least, or why none is considered."""
    least = least_hungry(question, admits=admits)
    if isinstance(least, str):
        return least
    one_of_many = question.job.stated_layout is None and question.cluster.num_gpus > 1
    hungry = ", the least hungry strategy," if one_of_many else ""
    return f"{least[0].execution.layout.strategy}{hungry} {why_not(*least)}"


def least_hungry(question: Question, *, admits: Admits = every_layout) -> tuple[Work, MemoryForecast] | str:
    """The execution on all of the hardware that needs least memory; where none is considered, the reason."""
    tried = reversed(offloads(question.job, question.cluster))
    explorers = [Explorer(question.with_offload(offload), timed=False) for offload in tried]
    for explorer in explorers:
        groups = list(_groups(explorer, admits=admits))
        if groups:
            return explorer.least(groups)
    choices = (choice for choice in layouts(question.job, question.model, question.cluster) if admits(choice.layout))
    reasons = (explorers[-1].why_left_out(choice) for choice in choices)
    return next((reason for reason in reasons if reason), "no layout has so many sequences for each of its ranks")


def _groups(explorer: Explorer, *, admits: Admits) -> Iterator[Group]:
    question = explorer.question
    for choice in layouts(question.job, question.model, question.cluster):
        if admits(choice.layout) and explorer.why_left_out(choice) is None:
            yield from explorer.groups(choice)
