"""Opens families of layouts: which of them may hold anything of interest, and what is in those that may."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from typing import NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import lean_sizes, sized
from shardwise.plan.frontier import Family, orders_of
from shardwise.plan.groups import Group, flying
from shardwise.plan.needs import ROUNDING
from shardwise.plan.products import Choice, layouts_of
from shardwise.plan.question import Question
from shardwise.plan.ranking import figures_of
from shardwise.plan.too_large import TooLarge
from shardwise.spec.execution import Execution, Recompute
from shardwise.spec.layout import Layout, Schedule, stages_per_rank

#: Figures of a goal.
_Figures = tuple[float, ...]
#: See `frontier.orders_of`.
_Orders = tuple[tuple[Schedule, Schedule], ...]


class _Reach(NamedTuple):
    """How good a family could be.

    Attributes:
        number: of the family.
        family: with figures that none of its layouts of a strategy stays below.
        spread: over which ranks a copy is spread, and what is recomputed.
        leanest: in each order of a pipeline the smallest size and the fewest forwards that are fast enough, if any is.
    """

    number: int
    family: Family
    spread: tuple[object, ...]
    leanest: tuple[tuple[int, int] | None, ...]


#: What families could reach, with these families.
Reached = dict[object, tuple[Sequence[Family], list[_Reach]]]


class Opener:
    """Opens the families of one question.

    Args:
        question: whose.
        bounds: of the question.
        known: what is known not to fit.
        groups: the executions of a layout with a recompute; none of one that is not considered.
        reached: how good families could be; remembers what is found.
        prune: open nothing that surely is of no interest.
    """

    def __init__(
        self,
        question: Question,
        *,
        bounds: Bounds,
        known: TooLarge,
        groups: Callable[[Choice, Recompute], Iterator[Group]],
        reached: Reached,
        prune: bool = True,
    ) -> None:
        self._question = question
        self._bounds = bounds
        self._known = known
        self._groups = groups
        self._prune = prune
        self._reached = reached

    def opened(self, family: Family, strategy: str) -> Iterator[Group]:
        """The executions of a family's layouts of one strategy."""
        job, model = self._question.job, self._question.model
        for choice in layouts_of(strategy, job, model, family.cluster, copy=family.copy):
            yield from self._groups(choice, family.recompute)

    def opened_on_largest(self, families: Iterable[Family], strategy: str) -> list[Group]:
        """The executions of a strategy on the largest part of the cluster that has any."""
        ordered = sorted(families, key=lambda family: family.cluster.num_gpus, reverse=True)
        for _, alike in groupby(ordered, key=lambda family: family.cluster.num_gpus):
            groups = [group for family in alike for group in self.opened(family, strategy)]
            if groups:
                return groups
        return []

    def of_interest(
        self, families: Sequence[Family], *, strategy: str, enough: _Figures | None, but: Container[int] = ()
    ) -> dict[int, Family]:
        """By their numbers those that could come within `enough`, each with the best it could reach, and on which
        something of a strategy may fit.

        Of parts on which a copy is spread alike, more GPUs never hold less of the same sizes in flight: halving finds
        the first that is enough for the leanest that are fast enough on any.

        Args:
            families: where to look.
            strategy: a name.
            enough: figures beyond which nothing is of interest.
            but: numbers of those that are known to be.
        """
        if not self._prune:
            return {number: family for number, family in enumerate(families) if number not in but}
        alike: dict[object, list[_Reach]] = {}
        for reach in self._reaches(families, strategy, enough):
            if reach.number not in but:
                alike.setdefault(reach.spread, []).append(reach)
        taken = (reach for reaches in alike.values() for reach in self._with_room(reaches, strategy))
        return {reach.number: reach.family for reach in taken}

    def _reaches(self, families: Sequence[Family], strategy: str, enough: _Figures | None) -> list[_Reach]:
        """How good those could be that could come within `enough`; most strategies share their families with others."""
        orders = orders_of(strategy)
        key = (id(families), orders, enough)
        if key not in self._reached:
            near = ((number, one) for number, one in enumerate(families) if enough is None or one.least <= enough)
            each = (self._reach(number, one, orders, enough) for number, one in near)
            self._reached[key] = (families, [reach for reach in each if any(reach.leanest)])
        return self._reached[key][1]

    def _reach(self, number: int, family: Family, orders: _Orders, enough: _Figures | None) -> _Reach:
        """What is paid, which parts are compared by, is in proportion to the seconds on equally many GPUs."""
        cluster, pp = family.cluster, family.copy["pp"]
        of_one_second = figures_of(self._question.job.goal, seconds=1.0, num_gpus=cluster.num_gpus, gpu=cluster.gpu)[-1]
        within = inf if enough is None else enough[-1] / of_one_second / ROUNDING
        least, leanest = inf, list[tuple[int, int] | None]()
        for _, fastest in orders:
            if pp * stages_per_rank(fastest) > self._question.model.num_layers:
                leanest.append(None)
                continue
            found = self._bounds.reach(
                family.alike, cluster, ranks=family.ranks, pp=pp, schedule=fastest, within=within
            )
            least = min(least, found.seconds) if found else least
            leanest.append((found.smallest, found.fewest) if found else None)
        figures = figures_of(self._question.job.goal, seconds=least, num_gpus=cluster.num_gpus, gpu=cluster.gpu)
        return _Reach(number, family._replace(least=figures), (family.spread, family.recompute), tuple(leanest))

    def _with_room(self, reaches: list[_Reach], strategy: str) -> list[_Reach]:
        """Those, of families that spread a copy alike, on which a strategy may fit."""
        reaches.sort(key=lambda reach: reach.family.cluster.num_gpus)
        wanted: list[tuple[Schedule, int, int]] = []
        for number, (lean, _) in enumerate(orders_of(strategy)):
            each = [one for one in (reach.leanest[number] for reach in reaches) if one is not None]
            if each:
                wanted.append((lean, min(size for size, _ in each), min(micros for _, micros in each)))
        low, high = 0, len(reaches) - 1
        if not self._may_hold(reaches[high].family, strategy, wanted):
            return []
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._may_hold(reaches[middle].family, strategy, wanted) else (middle + 1, high)
            )
        return reaches[low:]

    def _may_hold(self, family: Family, strategy: str, wanted: Iterable[tuple[Schedule, int, int]]) -> bool:
        """Whether the leanest layout of a strategy fits in any order of a pipeline, with so few sequences in flight."""
        job, model = self._question.job, self._question.model
        for schedule, size, micros in wanted:
            layout = family.leanest(strategy, schedule)
            if layout is None:
                continue
            base = replace(self._bounds.work_of(family.alike).execution, layout=layout)
            few = _filling_rounds(layout, micros)
            if any(self._may_fit(family, base, each, few) for each in lean_sizes(base, job, model, size)):
                return True
        return False

    def _may_fit(self, family: Family, base: Execution, size: int, micros: int) -> bool:
        capacity = family.cluster.gpu.usable_bytes
        rung = self._bounds.untimed(family.alike, size=size, micros=micros)
        if self._bounds.bytes(family.cluster, base, rung) > capacity:
            return False
        one = sized(base, self._question.job, self._question.model, size)
        one, under_way = replace(one, gradient_accumulation_steps=micros), flying(base.layout, micros)
        if self._known.rules_out(one, under_way):
            return False
        if self._question.peaks.fits(one, capacity):
            return True
        self._known.note(one, under_way)
        return False


def _filling_rounds(layout: Layout, micros: int) -> int:
    """An interleaved pipeline needs least where its ranks divide the forwards: see `plan.scene.flights`."""
    return micros // layout.pp * layout.pp or 1 if layout.schedule == "interleaved" else micros
