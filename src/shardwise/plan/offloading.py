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
from shardwise.plan.ranking import reach, to_overtake
from shardwise.spec.execution import Execution, Offload
from shardwise.spec.support import impossibilities

#: With more GPUs than this, what is cheapest is looked for with the least offload that anything fits with: going
#: through all parts of so many with each takes three quarters as long again, over two seconds for the largest models.
_MOST_COMPARED = 256
#: With more GPUs than this nobody looks for an offload with which a strategy would fit that is not chosen.
_MOST_HELD = 16


def compared(question: Question, offloads: Sequence[Offload]) -> tuple[Offload, ...]:
    """Which further offloads compete with the least that anything fits with."""
    return () if _stays_with_least(question) else tuple(offloads)


def better_offloaded(first: Exploration, further: Sequence[Offload]) -> list[Exploration]:
    """What further offloads leave open; known of it is what could be chosen before all that fits with less.

    Args:
        first: with the least offload that anything fits with, looked at.
        further: those with more that compete, in turn.
    """
    question = first.explorer.question
    each = [one for one in (_Offloaded(first, offload) for offload in further) if one.has_room]
    bests = [one.best for one in first.known if one.best is not None]
    goal, gpu = question.job.goal, question.cluster.gpu
    # Unless something overtakes all that fits with less, nothing that is alike with that is chosen either.
    enough = to_overtake(bests, goal=goal, gpu=gpu)
    others = [one.exploration(enough) for one in each]
    if others and contest_of(others, enough=enough):
        others = [one.exploration(reach(bests, goal=goal, gpu=gpu)) for one in each]
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
    """That further offloads were not looked at, where there are any and they were not."""
    if len(offloads(question.job, question.cluster)) == 1 or not _stays_with_least(question):
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

    @property
    def has_room(self) -> bool:
        """Whether anything could fit with it."""
        return self.explorer.has_room(self.explorer.question.cluster)

    def exploration(self, within: tuple[float, ...]) -> Exploration:
        """What strategies leave open; of smaller parts, what could come within some figures."""
        strategies, renewed = dict[str, Strategy](), dict[int, list[Family]]()
        for name, strategy in self._first.strategies.items():
            number = id(strategy.families)
            if number not in renewed:
                in_turn = takes_turns(name)
                near = (family for family in strategy.families if not self._surely_beyond(family, within))
                anew = (self._family(family, in_turn=in_turn) for family in near)
                renewed[number] = [one for one in anew if not self.explorer.prunes or one.least <= within]
            groups = [self._group(group) for group in strategy.groups if self._is_trained(group.base)]
            strategies[name] = Strategy(groups=groups, families=renewed[number])
        return Exploration(self.explorer, strategies)

    def _is_trained(self, base: Execution) -> bool:
        return not impossibilities(self.explorer.question.job, self._offloaded(base))

    def _group(self, group: Group) -> Group:
        base, bounds, alike = self._offloaded(group.base), self.explorer.bounds, self._alike_of(group)
        ladder = bounds.ladder_of(alike, group.cluster, base.layout.data_world_size)
        return Group(cluster=group.cluster, base=base, ladder=ladder, alike=alike)

    def _surely_beyond(self, family: Family, within: tuple[float, ...]) -> bool:
        """Whether a family could not come within some figures without offload, and takes no less time with this one.

        Of two offloads the one with more may have less to step on the host.
        """
        if not self.explorer.prunes or self._first.offload != "none" or family.least <= within:
            return False
        return self.explorer.bounds.is_paced_as(self._alike_of(family), family.alike)

    def _alike_of(self, one: Family | Group) -> int:
        """The number of executions with this offload, which have one without."""
        if one.alike not in self._alike:
            base = self._offloaded(self.explorer.bounds.work_of(one.alike).execution)
            self._alike[one.alike] = self.explorer.bounds.alike(one.cluster, base)
        return self._alike[one.alike]

    def _family(self, family: Family, *, in_turn: bool) -> Family:
        alike, pp = self._alike_of(family), family.copy["pp"]
        goal, bounds = self.explorer.question.job.goal, self.explorer.bounds
        least, alone = least_figures(goal, bounds, alike, family.cluster, ranks=family.ranks, pp=pp)
        return family._replace(alike=alike, least=alone if in_turn else least, least_in_turn=alone)

    def _offloaded(self, base: Execution) -> Execution:
        return replace(base, offload=self._offload)
