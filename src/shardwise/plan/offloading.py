"""Whether more in the host's memory would be better, where less of it fits: the same executions with further offloads,
as far as they could be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.plan.choices import offloads
from shardwise.plan.exploration import Exploration, Found, Strategy, contest_of
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Family, least_figures, takes_turns
from shardwise.plan.groups import Group
from shardwise.plan.question import Question
from shardwise.plan.ranking import reach
from shardwise.spec.execution import Execution, Offload
from shardwise.spec.support import impossibilities

#: With more GPUs than this, what is cheapest is looked for with the least offload that anything fits with: to go
#: through all parts of so many with each takes twice as long, and more than two seconds for the largest models.
_MOST_COMPARED = 256
#: With more GPUs than this nobody looks for an offload with which a strategy would fit that is not chosen.
_MOST_HELD = 16


def compared(question: Question, offloads: Sequence[Offload]) -> tuple[Offload, ...]:
    """Which further offloads compete with the least that anything fits with."""
    return () if _stays_with_least(question) else tuple(offloads)


def better_offloaded(first: Exploration, offloads: Sequence[Offload]) -> list[Exploration]:
    """What further offloads leave open; known of it is what could be chosen before all that fits with less.

    For the fewest GPUs that is on as many as the least offload needs: with everything in the host's memory one would do
    for nearly any model, in many times the time.

    Args:
        first: with the least offload that anything fits with, looked at.
        offloads: those with more that compete, in turn.
    """
    question = first.explorer.question
    each = [_Offloaded(first, offload) for offload in offloads]
    others = [one.exploration() for one in each if one.explorer.has_room(question.cluster)]
    if others:
        contest_of([first, *others])
    return others


def held_by_more(found: Found, others: Sequence[Exploration]) -> Found:
    """What came out for a strategy that does not fit, with the offload that it would fit with said, if there is one.

    On very many GPUs nobody looks for that.

    Args:
        found: with the least offload that anything fits with.
        others: with more.
    """
    if found.least is None or found.rejection is None or found.explorer.question.cluster.num_gpus > _MOST_HELD:
        return found
    offload = next((one.offload for one in others if one.fits(found.strategy)), None)
    if offload is None:
        return found
    reason = f"{found.rejection.reason}; with offload {offload} it would fit, and not be chosen"
    return replace(
        found, least=replace(found.least, reasons=(reason,)), rejection=replace(found.rejection, reason=reason)
    )


def offloads_passed_over(question: Question) -> str | None:
    """That further offloads were not looked at, where they were not."""
    if len(offloads(question.job, question.cluster)) == 1:
        return None
    if question.job.goal == "fewest-gpus":
        return (
            "the fewest GPUs are those that do with the least offload that anything fits with; with what train.offload "
            "states fewer may do, more slowly"
        )
    if not _stays_with_least(question):
        return None
    return (
        f"of more than {_MOST_COMPARED} GPUs what is cheapest is looked for with the least offload that anything fits "
        "with; train.offload states another"
    )


def _stays_with_least(question: Question) -> bool:
    job = question.job
    return job.goal == "cheapest" and job.stated_layout is None and question.cluster.num_gpus > _MOST_COMPARED


class _Offloaded:
    """An exploration once more, with another offload: that refuses layouts, and admits none that are refused without.

    How long blocks take mostly does not depend on it, so that both share their bounds.

    Args:
        first: with less offload.
        offload: the other one.
    """

    def __init__(self, first: Exploration, offload: Offload) -> None:
        before = first.explorer
        question = before.question.with_offload(offload)
        self.explorer = Explorer(question, prune=before.prunes, bounds=before.bounds, host_last=True)
        self._first = first
        self._offload: Offload = offload
        self._alike: dict[int, int] = {}

    def exploration(self) -> Exploration:
        """What strategies leave open; of smaller parts, what could be of interest."""
        job, gpu = self.explorer.question.job, self.explorer.question.cluster.gpu
        bests = [one.best for one in self._first.known if one.best is not None]
        within = reach(bests, goal=job.goal, gpu=gpu)
        strategies, renewed = dict[str, Strategy](), dict[int, list[Family]]()
        for name, strategy in self._first.strategies.items():
            number = id(strategy.families)
            if number not in renewed:
                in_turn = takes_turns(name)
                each = (self._family(family, in_turn=in_turn) for family in strategy.families)
                near = (family for family in each if not self.explorer.prunes or family.least <= within)
                renewed[number] = list(near)
            groups = [self._group(group) for group in strategy.groups if self._is_trained(group.base)]
            strategies[name] = Strategy(groups=groups, families=renewed[number])
        return Exploration(self.explorer, strategies)

    def _is_trained(self, base: Execution) -> bool:
        return not impossibilities(self.explorer.question.job, self._offloaded(base))

    def _group(self, group: Group) -> Group:
        base = self._offloaded(group.base)
        alike = self.explorer.bounds.alike(group.cluster, base)
        ladder = self.explorer.bounds.ladder(group.cluster, base)
        return Group(cluster=group.cluster, base=base, ladder=ladder, alike=alike)

    def _family(self, family: Family, *, in_turn: bool) -> Family:
        if family.alike not in self._alike:
            base = self._offloaded(self.explorer.bounds.work_of(family.alike).execution)
            self._alike[family.alike] = self.explorer.bounds.alike(family.cluster, base)
        alike, pp = self._alike[family.alike], family.copy["pp"]
        goal, bounds = self.explorer.question.job.goal, self.explorer.bounds
        least, alone = least_figures(goal, bounds, alike, family.cluster, ranks=family.ranks, pp=pp)
        return family._replace(alike=alike, least=alone if in_turn else least, least_in_turn=alone)

    def _offloaded(self, base: Execution) -> Execution:
        return replace(base, offload=self._offload)
