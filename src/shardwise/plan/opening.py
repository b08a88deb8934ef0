"""Opens families of layouts: which of them may hold anything of interest, and what is in those that may."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import lean_sizes, sized
from shardwise.plan.climbs import Rung
from shardwise.plan.frontier import Family, Spread
from shardwise.plan.groups import Group, flying
from shardwise.plan.outlook import Asked, Number, Outlook, Outlooks, least_asked
from shardwise.plan.products import Choice, layouts_of
from shardwise.plan.question import Question
from shardwise.plan.too_large import TooLarge
from shardwise.spec.execution import Execution, Recompute
from shardwise.spec.layout import Layout

#: Figures of a goal.
_Figures = tuple[float, ...]


class Opener:
    """Opens the families of one question.

    Args:
        question: whose.
        lean: the same with the least states (`question.with_least_states`).
        bounds: of the question.
        known: what is known not to fit.
        groups: the executions of a layout with a recompute; none of one that is not considered.
        outlooks: how good what is left could be.
        prune: open nothing that surely is of no interest.
    """

    def __init__(
        self,
        question: Question,
        *,
        lean: Question,
        bounds: Bounds,
        known: TooLarge,
        groups: Callable[[Choice, Recompute], Iterator[Group]],
        outlooks: Outlooks,
        prune: bool = True,
    ) -> None:
        self._question = question
        self._bounds = bounds
        self._known = known
        self._groups = groups
        self._prune = prune
        self._lean = lean
        self._outlooks = outlooks

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
        for near in self._outlooks.near(spreads, strategy, enough, admits=self._may_be_shared):
            wanted = self._outlooks.wanted(near, strategy, enough)
            if wanted and self._may_hold(near.spread.family(near.spread.parts[-1]), strategy, wanted):
                outlooks = [one for one in self._outlooks.of(near, strategy, enough) if one.number not in but]
                taken.update((one.number, one.family) for one in self._with_room(outlooks, strategy))
        return taken

    def _may_be_shared(self, spread: Spread, wanted: Iterable[Asked]) -> bool:
        """Whether no bound rules out all ways in which copies on the largest part may share the data out."""
        if not spread.form[0]:
            return True
        largest, bounds = spread.family(spread.parts[-1]), self._bounds
        return any(
            bounds.bytes_however_shared(largest.cluster, base, self._rung(largest, size, micros))
            <= largest.cluster.gpu.usable_bytes
            for base, sizes, micros in self._leanest(largest, "fsdp", wanted)
            for size in sizes
        )

    def _with_room(self, outlooks: list[Outlook], strategy: str) -> list[Outlook]:
        """Those, of the families of one spread, on which a strategy may fit."""
        wanted = least_asked(self._outlooks.orders(strategy), outlooks)
        low, high = 0, len(outlooks) - 1
        if not outlooks or not self._may_hold(outlooks[high].family, strategy, wanted):
            return []
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self._may_hold(outlooks[middle].family, strategy, wanted) else (middle + 1, high)
            )
        return outlooks[low:]

    def _may_hold(self, family: Family, strategy: str, wanted: Iterable[Asked]) -> bool:
        """Whether the leanest layout of a strategy fits in any order of a pipeline, with so few sequences in flight."""
        return any(
            self._may_fit(family, base, size, micros)
            for base, sizes, micros in self._leanest(family, strategy, wanted)
            for size in sizes
        )

    def _leanest(
        self, family: Family, strategy: str, wanted: Iterable[Asked]
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
        if self._lean is not self._question:
            one = replace(one, optimizer="sgd")
        if self._known.rules_out(one, under_way):
            return False
        if self._lean.peaks.fits(one, capacity):
            return True
        self._known.note(one, under_way)
        return False


def _every_family(spreads: Sequence[Spread]) -> Iterator[tuple[Number, Family]]:
    for number, spread in enumerate(spreads):
        for place, part in enumerate(spread.parts):
            yield (number, place), spread.family(part)


def _filling_rounds(layout: Layout, micros: int) -> int:
    """An interleaved pipeline needs least where its ranks divide the forwards: see `plan.scene.flights`."""
    return micros // layout.pp * layout.pp or 1 if layout.schedule == "interleaved" else micros
