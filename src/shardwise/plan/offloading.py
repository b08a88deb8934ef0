"""Whether more in the host's memory would be better, where less of it fits: the same executions with further offloads,
as far as they could be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.plan.exploration import Exploration, Found, Strategy, contest_of
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Spread
from shardwise.plan.groups import Group
from shardwise.plan.ranking import to_overtake
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution, Offload
from shardwise.spec.support import impossibilities

#: With more GPUs than this nobody looks for an offload with which a strategy would fit that is not chosen; so that with
#: further offloads nothing needs to be opened on the whole cluster before it is of interest.
_MOST_HELD = 16


def better_offloaded(first: Exploration, further: Sequence[Offload]) -> list[Exploration]:
    """What further offloads leave open; known of it is what could be chosen before all that fits with less.

    Args:
        first: with the least offload that anything fits with, looked at.
        further: those with more that compete, in turn.
    """
    question = first.explorer.question
    each = (_Offloaded(first, offload) for offload in further)
    others = [one.exploration() for one in each if one.has_room]
    bests = [one.best for one in first.known if one.best is not None]
    # Unless something overtakes all that fits with less, nothing that is alike with that is chosen either.
    enough = to_overtake(bests, goal=question.job.goal, gpu=question.cluster.gpu)
    if others and contest_of(others, enough=enough):
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
        self._renewed: dict[int, Sequence[Spread]] = {}

    @property
    def has_room(self) -> bool:
        """Whether anything could fit with it."""
        return self.explorer.has_room(self.explorer.question.cluster)

    def exploration(self) -> Exploration:
        """What strategies leave open."""
        return Exploration(self.explorer, {name: self._strategy(one) for name, one in self._first.strategies.items()})

    def _strategy(self, strategy: Strategy) -> Strategy:
        if strategy.everywhere and self.explorer.question.cluster.num_gpus > _MOST_HELD:
            return Strategy(spreads=self._spreads(strategy.everywhere))
        groups = [self._group(group) for group in strategy.groups if self._is_trained(group.base)]
        return Strategy(groups=groups, spreads=self._spreads(strategy.spreads))

    def _spreads(self, spreads: Sequence[Spread]) -> Sequence[Spread]:
        if id(spreads) not in self._renewed:
            renewed = [one._replace(alike=self._alike_of(one, one.parts[0])) for one in spreads]
            self._renewed[id(spreads)] = renewed
        return self._renewed[id(spreads)]

    def _is_trained(self, base: Execution) -> bool:
        return not impossibilities(self.explorer.question.job, self._offloaded(base))

    def _group(self, group: Group) -> Group:
        base, bounds, alike = self._offloaded(group.base), self.explorer.bounds, self._alike_of(group, group.cluster)
        ladder = bounds.ladder_of(alike, group.cluster, base.layout.data_world_size)
        return Group(cluster=group.cluster, base=base, ladder=ladder, alike=alike)

    def _alike_of(self, one: Spread | Group, cluster: Cluster) -> int:
        """The number of executions with this offload, which have one without."""
        if one.alike not in self._alike:
            base = self._offloaded(self.explorer.bounds.work_of(one.alike).execution)
            self._alike[one.alike] = self.explorer.bounds.alike(cluster, base)
        return self._alike[one.alike]

    def _offloaded(self, base: Execution) -> Execution:
        return replace(base, offload=self._offload)
