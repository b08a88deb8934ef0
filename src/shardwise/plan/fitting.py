"""Whether anything of a question fits, and what is missing where nothing does; nothing is timed but what must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwise.plan.choices import offloads
from shardwise.plan.explain import why_not
from shardwise.plan.explorer import Explorer
from shardwise.plan.groups import Group
from shardwise.plan.host import host_has_room, host_is_too_small
from shardwise.plan.products import Choice, layouts
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


def can_be_planned(question: Question, *, admits: Admits = every_layout, known: Known | None = None) -> bool:
    """Whether the plan of a question chooses something, on the hardware or on a part of it that the goal looks at.

    The smallest micro-batch and the largest, which needs no accumulation, are looked at first. Between them only one
    that holds its logits in another way can fit where they do not, which the search for the best one finds.

    Args:
        question: what is asked.
        admits: which layouts are of interest.
        known: what was found out about parts of other sizes of the same hardware; remembers what is found.
    """
    known = {} if known is None else known

    def fits_on(asked: Question) -> bool:
        key = (asked.job.train.offload, asked.cluster.num_nodes, asked.cluster.node.num_gpus)
        if key not in known:
            known[key] = something_fits(asked, admits=admits)
        return known[key]

    asked = [question.with_offload(offload) for offload in offloads(question.job, question.cluster)]
    on_parts = [replace(one, cluster=part) for one in asked for part in reversed(formed_parts(one.job, one.cluster))]
    return any(map(fits_on, on_parts))


def something_fits(question: Question, *, admits: Admits = every_layout) -> bool:
    """Whether any execution on all of the hardware fits, with the offload that the job states."""
    explorer, seen = Explorer(question, timed=False), list[Group]()
    if not (explorer.has_room(question.cluster) and host_has_room(question)):
        return False

    def groups() -> Iterator[Group]:
        # What the host must hold is asked of what fits the GPUs, which is less.
        for group in _groups(explorer, admits=admits, host=False):
            if explorer.may_fit(group):
                seen.append(group)
                yield group

    if any(explorer.fits([group]) and _suits_host(question, group) for group in groups()):
        return True
    return explorer.fits((group for group in seen if _suits_host(question, group)), every_size=True)


def _suits_host(question: Question, group: Group) -> bool:
    layout = group.base.layout
    choice = Choice(strategy=layout.strategy, layout=layout, cluster=group.cluster)
    return host_is_too_small(question, choice) is None


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


def _groups(explorer: Explorer, *, admits: Admits, host: bool = True) -> Iterator[Group]:
    question = explorer.question
    for choice in layouts(question.job, question.model, question.cluster):
        if admits(choice.layout) and explorer.why_left_out(choice, host=host) is None:
            yield from explorer.groups(choice)
