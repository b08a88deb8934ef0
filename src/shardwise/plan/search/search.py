"""The search: the fastest micro-batch that fits, for every open layout and recompute, in the order of a lower bound of
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from shardwise.plan.search.executions import bases, considered, offloads, sized, sizes_on, why_left_out
from shardwise.plan.search.forecasts import (
    Forecasts,
    bytes_beyond_host,
    candidate_of,
    host_is_too_small,
    ways_to_reduce,
)
from shardwise.plan.search.goals import Found, chosen_of, tie_of
from shardwise.plan.search.layouts import Choice, lean_layouts
from shardwise.plan.search.question import Question
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate

#: Which layouts are of interest.
Admits = Callable[[Layout], bool]

#: Of no more executions than this the best of every strategy is looked for.
_IN_FULL = 1000

#: On more GPUs than this the host's memory is turned to only where nothing fits without.
_MOST_OFFLOADED = 64

#: So many smaller micro-batches in a row that are no faster end the look at a layout.
_NO_FASTER = 2

#: Of no more micro-batches than this, seconds are computed before it is known whether they fit.
_FEW = 2

#: The share of a step for which whole gradients are kept.
_WORTH_WHOLE_GRADIENTS = 0.01


def every_layout(_: Layout) -> bool:
    """All of them are."""
    return True


@dataclass(kw_only=True, slots=True)
class Strategy:
    """The executions of one strategy, the best of them, and the first layout that was left out."""

    bases: list[Execution] = field(default_factory=list[Execution])
    left_out: Choice | None = None
    best: Found | None = None


class Search:
    """The search of a question that states an offload."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.forecasts = Forecasts(question)

    @cached_property
    def strategies(self) -> dict[str, Strategy]:
        """What each strategy leaves open."""
        asked, found = self.question, dict[str, Strategy]()
        for choice in asked.layouts:
            strategy = found.setdefault(choice.strategy, Strategy())
            some, reason = considered(asked.job, asked.model, choice)
            strategy.bases += some
            if reason is not None:
                strategy.left_out = strategy.left_out or replace(choice, reason=reason)
        return found

    def look(self, *, limit: float = inf, all_strategies: bool = True) -> None:
        """Finds the best of each strategy within `limit` seconds; without `all_strategies` only of those that can be
        chosen."""
        near, options = limit, sorted(self._with_bounds(limit))
        in_full = all_strategies and len(options) <= _IN_FULL
        for least, _, base in options:
            if least > limit:
                break
            strategy = self.strategies[base.layout.strategy]
            below = limit if strategy.best is None else min(strategy.best.seconds, limit if in_full else near)
            found = self._fastest(base, below=below) if least < below else None
            if found is not None:
                strategy.best = found
                near = min(near, found.seconds * (1 + tie_of(self.question.cluster.gpu)))
                limit = limit if all_strategies else near

    def _with_bounds(self, limit: float) -> Iterator[tuple[float, int, Execution]]:
        """All executions, each with a lower bound of its seconds, but those that take more than `limit`."""
        every = (base for strategy in self.strategies.values() for base in strategy.bases)
        for number, base in enumerate(every):
            sizes = sizes_on(self.question.job, base.layout.data_world_size)
            least = self.forecasts.least_of_sizes(base, sizes)
            if least <= limit:
                yield least + self.forecasts.seconds_on_host(base), number, base

    def _fastest(self, base: Execution, *, below: float) -> Found | None:
        """The fastest micro-batch that fits and takes fewer seconds than `below`, from the largest down."""
        if not (self._has_room_for(base) and self._can_take_less(base, below=below)):
            return None
        best, fastest, slower = None, inf, 0

        def wanted(size: int) -> bool:
            return self.forecasts.may_take_less(base, size, below=below)

        for size in self._that_fit(base, wanted=wanted):
            execution = sized(base, self.question.job, size)
            seconds = self.forecasts.seconds(execution)
            if execution.may_reduce_once and (once := self._once(execution, seconds, below=below)):
                execution, seconds = once, self.forecasts.seconds(once)
            slower = 0 if seconds < fastest else slower + 1
            fastest = min(fastest, seconds)
            if seconds < below:
                best, below = Found(execution=execution, seconds=seconds), seconds
            if slower == _NO_FASTER:
                break
        return best

    def _has_room_for(self, base: Execution) -> bool:
        """Whether the smallest micro-batch or the largest may fit, by a lower bound of memory."""
        sizes = sizes_on(self.question.job, base.layout.data_world_size)
        ends = (sized(base, self.question.job, size) for size in {sizes[0], sizes[-1]})
        return any(self.forecasts.memory.least_bytes(one) <= self.question.cluster.gpu.usable_bytes for one in ends)

    def _can_take_less(self, base: Execution, *, below: float) -> bool:
        """Whether a micro-batch takes fewer seconds than `below`, were there memory for it; of more than `_FEW` that
        may, what fits is sooner known than all their seconds."""
        tried = 0
        for size in reversed(sizes_on(self.question.job, base.layout.data_world_size)):
            if self.forecasts.may_take_less(base, size, below=below):
                ways, tried = ways_to_reduce(sized(base, self.question.job, size)), tried + 1
                if tried > _FEW or any(self.forecasts.seconds(one) < below for one in ways):
                    return True
        return False

    def _once(self, execution: Execution, seconds: float, *, below: float) -> Execution | None:
        """The execution that reduces gradients once a step, where that takes less than `below`, is worth it and
        fits."""
        once = replace(execution, reduce_once=True)
        took = self.forecasts.seconds(once)
        faster = took < below and took <= seconds * (1 - _WORTH_WHOLE_GRADIENTS)
        return once if faster and self._fits(once) else None

    def _that_fit(self, base: Execution, *, wanted: Callable[[int], bool]) -> Iterator[int]:
        """The micro-batches that fit of those that are wanted when their turn comes, from the largest, which
        accumulates no gradients, and may fit alone; others by bisection."""
        sizes = sizes_on(self.question.job, base.layout.data_world_size)
        last = len(sizes) - 1

        def fits(index: int) -> bool:
            return self._fits(sized(base, self.question.job, sizes[index]))

        if wanted(sizes[last]) and fits(last):
            yield sizes[last]
        if not any(map(wanted, sizes[:last])) or not fits(0):
            return
        low, high = (last, last) if fits(last) else (0, last)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        yield from filter(wanted, reversed(sizes[: min(low + 1, last)]))

    def _fits(self, execution: Execution) -> bool:
        return self.forecasts.fits(execution) and self._beyond_host(execution) is None

    def _beyond_host(self, execution: Execution) -> int | None:
        if not self.question.tries_offload or execution.offload == "none":
            return None
        return bytes_beyond_host(
            self.question.cluster, execution, of_rank=self.forecasts.memory.bytes_on_host(execution)
        )

    def something_fits(self, *, admits: Admits = every_layout) -> bool:
        """Whether any of the leanest executions fits."""
        return self.has_room and any(map(self._fits, self.leanest(admits=admits)))

    @property
    def has_room(self) -> bool:
        """Whether all GPUs together hold the parameters with their gradients and states once."""
        job, cluster = self.question.job, self.question.cluster
        alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
        least = min(
            (self.forecasts.memory.bytes_of_states(one) for one in bases(job, self.question.model, alone)), default=0
        )
        return least <= cluster.num_gpus * cluster.gpu.usable_bytes

    def leanest(self, *, admits: Admits = every_layout) -> Iterator[Execution]:
        """Executions that shard and recompute whatever they can, at the smallest micro-batch and the largest."""
        job, model = self.question.job, self.question.model
        for choice in lean_layouts(job, model, self.question.cluster):
            if admits(choice.layout):
                yield from self._extremes(considered(job, model, choice)[0])

    def _extremes(self, some: Iterable[Execution]) -> Iterator[Execution]:
        """The smallest micro-batch and the largest, with as much recompute as is open."""
        recomputed = {base.layout: base for base in some}
        for base in recomputed.values():
            sizes = sizes_on(self.question.job, base.layout.data_world_size)
            yield from (sized(base, self.question.job, size) for size in sorted({sizes[0], sizes[-1]}))

    def least_hungry(self, some: Iterable[Execution]) -> Execution | None:
        """Of some executions the leanest micro-batch that needs least memory; None where there are none."""
        return self._least(self._extremes(some))

    def _least(self, some: Iterable[Execution]) -> Execution | None:
        bounds = sorted((self.forecasts.memory.least_bytes(one), number, one) for number, one in enumerate(some))
        least, found = inf, None
        for bound, _, execution in bounds:
            if bound >= least:
                break
            high = self.forecasts.memory.high_bytes(execution)
            if high < least:
                least, found = high, execution
        return found

    def least_of_all(self, *, admits: Admits = every_layout) -> Execution | str:
        """The leanest execution that needs least memory; where none is considered, the reason."""
        job, model = self.question.job, self.question.model
        least = self._least(self.leanest(admits=admits))
        if least is not None:
            return least
        choices = (choice for choice in self.question.layouts if admits(choice.layout))
        reasons = (why_left_out(job, model, choice) for choice in choices)
        return next((reason for reason in reasons if reason), "no layout has so many sequences for each of its ranks")

    def lack_on_host(self, execution: Execution) -> tuple[int, str] | None:
        """Bytes that an execution which fits the GPUs takes of a host with too little memory, with a sentence."""
        held = self._beyond_host(execution)
        if held is None or not self.forecasts.fits(execution):
            return None
        return held, host_is_too_small(execution, held)

    @property
    def found(self) -> list[Found]:
        """The best of each strategy that fits."""
        return [one.best for one in self.strategies.values() if one.best is not None]

    def candidate(self, execution: Execution) -> Candidate:
        """What is known of an execution, as a plan has it."""
        return candidate_of(self.question, self.forecasts.of(execution))


def search_offloads(question: Question, *, all_strategies: bool = True) -> list[Search]:
    """Looks for the best of each strategy with every offload that a job leaves open.

    Returns:
        The searches, first that with the least offload that anything fits with; the first of all where nothing fits.
    """
    searches: list[Search] = []
    tie = 1 + tie_of(question.cluster.gpu)
    for offload in offloads(question.job, question.cluster):
        search = Search(question.with_offload(offload))
        known = [one.seconds for before in searches for one in before.found]
        if known and question.cluster.num_gpus > _MOST_OFFLOADED:
            break
        if search.has_room if all_strategies else search.something_fits():
            search.look(
                limit=min((tie * one for one in known), default=inf), all_strategies=all_strategies and not known
            )
        if search.found and searches and not searches[0].found:
            searches.clear()
        searches.append(search)
    return searches


def chosen(searches: Sequence[Search]) -> tuple[Search, Found] | None:
    """What is chosen of some searches on one cluster, and its search; None where nothing fits."""
    found = {id(one): (search, one) for search in searches for one in search.found}
    if not found:
        return None
    question = searches[0].question
    best = chosen_of((one for _, one in found.values()), goal=question.job.goal, gpu=question.cluster.gpu)
    return found[id(best)]


def best_alone(question: Question) -> Candidate | None:
    """What is chosen on all of a question's hardware; None where nothing fits."""
    best = chosen(search_offloads(question, all_strategies=False))
    return best and best[0].candidate(best[1].execution)
