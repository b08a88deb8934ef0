"""Opens families of layouts: which of them may hold anything of interest, and what is in those that may."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import lean_sizes, sized
from shardwise.plan.climbs import Rung
from shardwise.plan.frontier import Family, Spread, orders_of
from shardwise.plan.groups import Group, flying
from shardwise.plan.needs import ROUNDING
from shardwise.plan.products import Choice, layouts_of
from shardwise.plan.question import Question
from shardwise.plan.ranking import figures_of
from shardwise.plan.tempo import Leanest
from shardwise.plan.too_large import TooLarge
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution, Recompute
from shardwise.spec.layout import Layout, Schedule

#: Figures of a goal.
_Figures = tuple[float, ...]
#: An order of a pipeline, the sequences of a micro-batch, and the forwards of a step.
_Asked = tuple[Schedule, int, int]
#: Of a family: that of its spread, and which of its parts.
Number = tuple[int, int]
#: See `frontier.orders_of`.
_Orders = tuple[tuple[Schedule, Schedule], ...]


class _Reach(NamedTuple):
    """How good a family could be.

    Attributes:
        number: of the family.
        family: with figures that none of its layouts of a strategy stays below.
        leanest: in each order of a pipeline the smallest size and the fewest forwards that are fast enough, if any is.
    """

    number: Number
    family: Family
    leanest: tuple[tuple[int, int] | None, ...]


@dataclass(kw_only=True, slots=True)
class _Near:
    """A spread that could come within some figures.

    Attributes:
        number: of the spread.
        wanted: in each order of a pipeline the leanest sizes that are fast enough on any of its parts.
        reaches: of its families, once that is asked.
    """

    number: int
    spread: Spread
    wanted: tuple[Leanest, ...]
    reaches: list[_Reach] | None = None

    def asked(self, orders: _Orders) -> Iterator[_Asked]:
        """All of these sizes."""
        return ((lean, *one) for (lean, _), sizes in zip(orders, self.wanted, strict=True) for one in sizes)


#: What spreads could reach, with these spreads.
Reached = dict[object, tuple[Sequence[Spread], list[_Near]]]


class Opener:
    """Opens the families of one question.

    Args:
        question: whose.
        bounds: of the question.
        known: what is known not to fit.
        groups: the executions of a layout with a recompute; none of one that is not considered.
        reached: how good spreads could be; remembers what is found.
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
        for choice in layouts_of(strategy, job, model, family.cluster, copy=family.spread.copy):
            yield from self._groups(choice, family.spread.recompute)

    def opened_on_largest(self, spreads: Iterable[Spread], strategy: str) -> list[Group]:
        """The executions of a strategy on the largest part of the cluster that has any."""
        families = (spread.family(part) for spread in spreads for part in spread.parts)
        ordered = sorted(families, key=lambda family: family.cluster.num_gpus, reverse=True)
        for _, alike in groupby(ordered, key=lambda family: family.cluster.num_gpus):
            groups = [group for family in alike for group in self.opened(family, strategy)]
            if groups:
                return groups
        return []

    def least_figures(self, spreads: Iterable[Spread]) -> _Figures | None:
        """Figures that none of some spreads stays below; None where there are none of them."""
        goal = self._question.job.goal
        each = (
            figures_of(
                goal,
                seconds=self._bounds.least_of(one.alike, sizes=one.sizes, pp=one.copy["pp"]),
                num_gpus=one.num_gpus,
                gpu=one.parts[0].gpu,
            )
            for one in spreads
        )
        return min(each, default=None)

    def of_interest(
        self, spreads: Sequence[Spread], *, strategy: str, enough: _Figures | None, but: Container[Number] = ()
    ) -> dict[Number, Family]:
        """By their numbers the families that could come within `enough`, each with the best it could reach, and on
        which something of a strategy may fit.

        Of parts on which a copy is spread alike, more GPUs never hold less of the same sizes in flight: where the
        largest has no room for the leanest that are fast enough on any, no other has, and halving finds the first that
        has.

        Args:
            spreads: where to look.
            strategy: a name.
            enough: figures beyond which nothing is of interest.
            but: numbers of those that are known to be.
        """
        if not self._prune:
            return {number: family for number, family in _every_family(spreads) if number not in but}
        taken: dict[Number, Family] = {}
        orders = orders_of(strategy)
        for near in self._near(spreads, orders, enough):
            largest = near.spread.family(near.spread.parts[-1])
            if self._may_hold(largest, strategy, near.asked(orders)):
                reaches = [one for one in self._reaches(near, orders, enough) if one.number not in but]
                taken.update((one.number, one.family) for one in self._with_room(reaches, strategy))
        return taken

    def _near(self, spreads: Sequence[Spread], orders: _Orders, enough: _Figures | None) -> list[_Near]:
        """Those that could come within `enough`; most strategies share their spreads with others."""
        key = (id(spreads), orders, enough)
        if key not in self._reached:
            each = (
                _Near(number=number, spread=one, wanted=self._wanted(one, orders, enough))
                for number, one in enumerate(spreads)
            )
            near = [one for one in each if any(one.wanted) and self._may_be_shared(one, orders)]
            self._reached[key] = (spreads, near)
        return self._reached[key][1]

    def _may_be_shared(self, near: _Near, orders: _Orders) -> bool:
        """Whether no bound rules out all ways in which copies on the largest part may share the data out."""
        if not near.spread.form[0]:
            return True
        largest, bounds = near.spread.family(near.spread.parts[-1]), self._bounds
        return any(
            bounds.bytes_however_shared(largest.cluster, base, self._rung(largest, size, micros))
            <= largest.cluster.gpu.usable_bytes
            for base, sizes, micros in self._leanest(largest, "fsdp", near.asked(orders))
            for size in sizes
        )

    def _wanted(self, spread: Spread, orders: _Orders, enough: _Figures | None) -> tuple[Leanest, ...]:
        """What is paid is the same for half the copies and twice the seconds; what takes least time has most copies."""
        goal, first, last = self._question.job.goal, *(spread.family(spread.parts[one]) for one in (0, -1))
        copies = 1 if goal == "cheapest" else last.ranks
        within = copies * self._seconds_within(enough, last.cluster, num_gpus=copies * spread.num_gpus)
        batch = self._question.job.train.global_batch_size
        share, pp = -(-batch // first.ranks), spread.copy["pp"]
        return tuple(
            self._bounds.leanest_of(
                spread.alike, sizes=spread.sizes, share=share, pp=pp, schedule=fastest, within=within
            )
            for _, fastest in orders
        )

    def _seconds_within(self, enough: _Figures | None, part: Cluster, *, num_gpus: int) -> float:
        """Seconds of a step on so many GPUs that come within some figures."""
        if enough is None:
            return inf
        of_one_second = figures_of(self._question.job.goal, seconds=1.0, num_gpus=num_gpus, gpu=part.gpu)
        return enough[-1] / of_one_second[-1] / ROUNDING

    def _reaches(self, near: _Near, orders: _Orders, enough: _Figures | None) -> list[_Reach]:
        """How good those families of a spread could be that could come within `enough`."""
        if near.reaches is None:
            families = (near.spread.family(part) for part in near.spread.parts)
            each = (self._reach((near.number, place), one, orders, enough) for place, one in enumerate(families))
            near.reaches = [reach for reach in each if any(reach.leanest)]
        return near.reaches

    def _reach(self, number: Number, family: Family, orders: _Orders, enough: _Figures | None) -> _Reach:
        cluster, pp = family.cluster, family.spread.copy["pp"]
        within = self._seconds_within(enough, cluster, num_gpus=cluster.num_gpus)
        least, leanest = inf, list[tuple[int, int] | None]()
        for _, fastest in orders:
            found = self._bounds.reach(
                family.spread.alike, cluster, ranks=family.ranks, pp=pp, schedule=fastest, within=within
            )
            least = min(least, found.seconds) if found else least
            leanest.append((found.smallest, found.fewest) if found else None)
        figures = figures_of(self._question.job.goal, seconds=least, num_gpus=cluster.num_gpus, gpu=cluster.gpu)
        return _Reach(number, family._replace(least=figures), tuple(leanest))

    def _with_room(self, reaches: list[_Reach], strategy: str) -> list[_Reach]:
        """Those, of the families of one spread, on which a strategy may fit."""
        wanted = _asked(orders_of(strategy), [reach.leanest for reach in reaches])
        low, high = 0, len(reaches) - 1
        if not reaches or not self._may_hold(reaches[high].family, strategy, wanted):
            return []
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._may_hold(reaches[middle].family, strategy, wanted) else (middle + 1, high)
            )
        return reaches[low:]

    def _may_hold(self, family: Family, strategy: str, wanted: Iterable[_Asked]) -> bool:
        """Whether the leanest layout of a strategy fits in any order of a pipeline, with so few sequences in flight."""
        return any(
            self._may_fit(family, base, size, micros)
            for base, sizes, micros in self._leanest(family, strategy, wanted)
            for size in sizes
        )

    def _leanest(
        self, family: Family, strategy: str, wanted: Iterable[_Asked]
    ) -> Iterator[tuple[Execution, tuple[int, ...], int]]:
        """The leanest layout of a strategy in each order of a pipeline, with sizes of which one needs least, and with
        how few forwards."""
        job, model = self._question.job, self._question.model
        for schedule, size, micros in wanted:
            layout = family.leanest(strategy, schedule)
            if layout is not None:
                base = replace(self._bounds.work_of(family.spread.alike).execution, layout=layout)
                yield base, lean_sizes(base, job, model, size), _filling_rounds(layout, micros)

    def _rung(self, family: Family, size: int, micros: int) -> Rung:
        return self._bounds.untimed(family.spread.alike, size=size, micros=micros)

    def _may_fit(self, family: Family, base: Execution, size: int, micros: int) -> bool:
        capacity = family.cluster.gpu.usable_bytes
        rung = self._rung(family, size, micros)
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


def _asked(orders: _Orders, leanest: Sequence[tuple[tuple[int, int] | None, ...]]) -> list[_Asked]:
    """Of several that hold something in each order of a pipeline, what all of them need at least."""
    found: list[_Asked] = []
    for number, (lean, _) in enumerate(orders):
        each = [one for one in (lean_of_all[number] for lean_of_all in leanest) if one is not None]
        if each:
            found.append((lean, min(size for size, _ in each), min(micros for _, micros in each)))
    return found


def _every_family(spreads: Sequence[Spread]) -> Iterator[tuple[Number, Family]]:
    for number, spread in enumerate(spreads):
        for place, part in enumerate(spread.parts):
            yield (number, place), spread.family(part)


def _filling_rounds(layout: Layout, micros: int) -> int:
    """An interleaved pipeline needs least where its ranks divide the forwards: see `plan.scene.flights`."""
    return micros // layout.pp * layout.pp or 1 if layout.schedule == "interleaved" else micros
