"""Opens families of layouts: which of them may hold anything of interest, and what is in those that may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from shardwise.plan.bounds import Bounds, Rung
from shardwise.plan.choices import sized
from shardwise.plan.frontier import Family
from shardwise.plan.groups import Group
from shardwise.plan.products import Choice, layouts_of
from shardwise.plan.question import Question
from shardwise.plan.too_large import TooLarge
from shardwise.spec.layout import Layout

#: Figures of a goal.
_Figures = tuple[float, ...]


class Opener:
    """Opens the families of one question.

    Args:
        question: whose.
        bounds: of the question.
        known: what is known not to fit.
        groups: the executions of a layout; none of one that is not considered.
        prune: open nothing that surely is of no interest.
    """

    def __init__(
        self,
        question: Question,
        *,
        bounds: Bounds,
        known: TooLarge,
        groups: Callable[[Choice], Iterator[Group]],
        prune: bool = True,
    ) -> None:
        self._question = question
        self._bounds = bounds
        self._known = known
        self._groups = groups
        self._prune = prune

    def opened(self, family: Family, strategy: str) -> Iterator[Group]:
        """The executions of a family's layouts of one strategy."""
        job, model = self._question.job, self._question.model
        for choice in layouts_of(strategy, job, model, family.cluster, copy=family.copy):
            groups = self._groups(choice)
            yield from (group for group in groups if group.base.gradient_checkpointing == family.recompute)

    def opened_on_largest(self, families: Iterable[Family], strategy: str) -> list[Group]:
        """The executions of a strategy on the largest part of the cluster that has any."""
        ordered = sorted(families, key=lambda family: family.cluster.num_gpus, reverse=True)
        for _, alike in groupby(ordered, key=lambda family: family.cluster.num_gpus):
            groups = [group for family in alike for group in self.opened(family, strategy)]
            if groups:
                return groups
        return []

    def of_interest(self, families: Iterable[Family], *, strategy: str, enough: _Figures | None) -> Iterator[Family]:
        """Those that could come within `enough`, and on which something of a strategy may fit.

        Of parts on which a copy is spread alike, more GPUs never hold less: halving finds the first that is enough.
        """
        if not self._prune:
            yield from families
            return
        alike: dict[object, list[Family]] = {}
        for family in families:
            if enough is None or family.least <= enough:
                alike.setdefault((*family.copy.values(), family.recompute), []).append(family)
        for parts in alike.values():
            parts.sort(key=lambda family: family.cluster.num_gpus)
            low, high = 0, len(parts) - 1
            if not self._may_hold(parts[high], strategy):
                continue
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if self._may_hold(parts[middle], strategy) else (middle + 1, high)
            yield from parts[low:]

    def _may_hold(self, family: Family, strategy: str) -> bool:
        """Whether the leanest layout of a strategy fits with any size."""
        for layout in family.leanest(strategy):
            if layout.num_stages <= self._question.model.num_layers:
                base = replace(self._bounds.work_of(family.alike).execution, layout=layout)
                ladder = self._bounds.ladder_of(family.alike, family.cluster, layout)
                group = Group(cluster=family.cluster, base=base, ladder=ladder)
                if any(self._may_fit(group, rung) for rung in group.leanest()):
                    return True
        return False

    def _may_fit(self, group: Group, rung: Rung) -> bool:
        base, capacity = group.base, group.cluster.gpu.memory_bytes
        rung = rung._replace(micros=_filling_rounds(base.layout, rung.micros))
        if self._bounds.bytes(group.cluster, base, rung) > capacity:
            return False
        one = sized(base, self._question.job, self._question.model, rung.size)
        one, flying = replace(one, gradient_accumulation_steps=rung.micros), group.in_flight(rung)
        if self._known.rules_out(one, flying):
            return False
        if self._question.peaks.high_bytes(one) <= capacity:
            return True
        self._known.note(one, flying)
        return False


def _filling_rounds(layout: Layout, micros: int) -> int:
    """An interleaved pipeline needs least where its ranks divide the forwards: see `plan.scene.flights`."""
    return micros // layout.pp * layout.pp or 1 if layout.schedule == "interleaved" else micros
