"""The search: the fastest execution of each strategy that fits, best first by lower bounds."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from shardwise.catalog.calibration import OWN, errors_of
from shardwise.plan.search.executions import bases, considered, offloads, sized, sizes_on
from shardwise.plan.search.forecasts import HOST_OVER_GPU_MEMORY, Forecasts, bytes_beyond_host, ways_to_reduce
from shardwise.plan.search.goals import Found, chosen_of, doubt_of, least_of, tie_of
from shardwise.plan.search.layouts import Choice, lean_layouts
from shardwise.plan.search.question import Question
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate
from shardwise.units import GIB

#: Which layouts are of interest.
Admits = Callable[[Layout], bool]

#: Of no more executions than this the best of every strategy is looked for.
_IN_FULL = 1000

#: On more GPUs than this the host's memory is turned to only where nothing fits without.
_MOST_OFFLOADED = 64

#: Of a pipeline with more forwards a step, over all stages, what fits is sooner known than seconds.
_LONG = 256

#: The share of a step for which whole gradients are kept.
_WORTH_WHOLE_GRADIENTS = 0.01


def every_layout(_: Layout) -> bool:
    """All of them are."""
    return True


@dataclass(kw_only=True, slots=True)
class StrategySearch:
    """The executions of one strategy, the best of them, and the first layout that was left out."""

    bases: list[Execution] = field(default_factory=list[Execution])
    left_out: Choice | None = None
    best: Found | None = None


class _Option(NamedTuple):
    """What may hold the fastest execution of its strategy, with seconds or a lower bound of them.
    Level 0 is a base; 1 and 2 one of its micro-batches, of the size `-smaller`, so that of equals
    the largest is first; 3 an execution; 4 one that reduces gradients once a step."""

    seconds: float
    number: int
    smaller: int
    level: int
    base: Execution
    execution: Execution | None = None


class Search:
    """The search of a question that states an offload."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.forecasts = Forecasts(question)
        self._largest: dict[int, int] = {}

    @cached_property
    def strategies(self) -> dict[str, StrategySearch]:
        """What each strategy leaves open."""
        asked, found = self.question, dict[str, StrategySearch]()
        for choice in asked.layouts:
            strategy = found.setdefault(choice.strategy, StrategySearch())
            some, reason = considered(asked.job, asked.model, choice)
            strategy.bases += some
            if reason is not None:
                strategy.left_out = strategy.left_out or replace(choice, reason=reason)
        return found

    def look(self, *, limit: float = inf, within: float = inf, all_strategies: bool = True) -> None:
        """Finds the fastest of each strategy within `limit` seconds, nothing if all take longer
        than `within`; without `all_strategies` only of those that can be chosen. Of more than
        `_IN_FULL`, a strategy that cannot be chosen has the fastest of the first base that fits.

        Best first: of all options, that with the least seconds is taken up next. A base has a lower
        bound, and each of its micro-batches has one; then their seconds are computed. The first of
        a strategy that fits is its fastest.
        """
        ahead = sorted(self.with_bounds(limit))
        in_full, near, most = all_strategies and len(ahead) <= _IN_FULL, limit, min(limit, within)
        while ahead and ahead[0].seconds <= most:
            option = heappop(ahead)
            strategy = self.strategies[option.base.layout.strategy]
            # Bounds come in order: what was found first is the fastest of its strategy.
            if strategy.best is not None:
                continue
            can_be_chosen = in_full or option.seconds <= near
            found = self._take_up(option, ahead) if can_be_chosen else self._first_of([option])
            if found is not None:
                strategy.best = found = self._roomy(found)
                cluster = self.question.cluster
                near = min(near, found.seconds * doubt_of(found, cluster) * (1 + tie_of(cluster.gpu)))
                most = limit if all_strategies else near

    def _take_up(self, option: _Option, ahead: list[_Option]) -> Found | None:
        """An execution that fits; otherwise what an option stands for is added to what is ahead."""
        size, sizes = -option.smaller, sizes_on(self.question.job, option.base.layout.data_world_size)
        # The largest micro-batch of all accumulates no gradients, and may fit alone.
        if size > self._largest.get(option.number, sys.maxsize) and size != sizes[-1]:
            return None
        execution = option.execution
        if option.level == 2:  # of a long pipeline memory is sooner known than seconds
            asked = sized(option.base, self.question.job, size)
            long = asked.gradient_accumulation_steps * asked.layout.num_stages > _LONG
            execution = asked if long else None
        if execution is not None:
            if not self._fits(execution):
                if not execution.reduce_once:
                    self._largest[option.number] = self._largest_that_fits(option)
                return None
            if option.execution is not None:
                return Found(execution=execution, seconds=option.seconds)
        for closer in self._closer(option):
            heappush(ahead, closer)
        return None

    def _first_of(self, ahead: list[_Option]) -> Found | None:
        found = None
        while found is None and ahead:
            found = self._take_up(heappop(ahead), ahead)
        return found

    def with_bounds(self, limit: float) -> Iterator[_Option]:
        """All executions with a lower bound of their seconds, but those that exceed `limit`."""
        every = (base for strategy in self.strategies.values() for base in strategy.bases)
        for number, base in enumerate(every):
            sizes = sizes_on(self.question.job, base.layout.data_world_size)
            least = self.forecasts.least_of_sizes(base, sizes)
            if least <= limit:
                yield _Option(least + self.forecasts.seconds_on_host(base), number, 0, 0, base)

    def _closer(self, option: _Option) -> Iterator[_Option]:
        base, job, forecasts, size = option.base, self.question.job, self.forecasts, -option.smaller
        if option.level == 0:
            for size in sizes_on(job, base.layout.data_world_size) if self._has_room_for(base) else ():
                yield option._replace(seconds=forecasts.least_seconds_of(base, size), smaller=-size, level=1)
        elif option.level == 1 and (least := forecasts.least_of_pipeline(base, size)):
            yield option._replace(seconds=max(least, option.seconds), level=2)
        else:
            plain, *once = ways_to_reduce(sized(base, job, size))
            seconds = forecasts.seconds(plain)
            yield option._replace(seconds=seconds, level=3, execution=plain)
            for one in once:
                if (took := forecasts.seconds(one)) <= seconds * (1 - _WORTH_WHOLE_GRADIENTS):
                    yield option._replace(seconds=took, level=4, execution=one)

    def _has_room_for(self, base: Execution) -> bool:
        """Whether the smallest micro-batch or the largest may fit, by a lower bound of memory."""
        usable = self.question.cluster.gpu.usable_bytes
        return any(self.forecasts.memory.least_bytes(one) <= usable for one in self.extremes([base]))

    def _largest_that_fits(self, option: _Option) -> int:
        """Of the micro-batches below one that does not fit, by bisection; 0 where none fits."""
        sizes = sizes_on(self.question.job, option.base.layout.data_world_size)
        # Memory grows with the micro-batch, so that bisection is right.
        low, high = -1, sizes.index(-option.smaller)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._fits(sized(option.base, self.question.job, sizes[middle]))
            low, high = (middle, high) if fits else (low, middle)
        return sizes[low] if low >= 0 else 0

    def _fits(self, execution: Execution) -> bool:
        return self.forecasts.fits(execution) and self._beyond_host(execution) is None

    def _beyond_host(self, execution: Execution) -> int | None:
        if not self.question.tries_offload or execution.offload == "none":
            return None
        held = self.forecasts.memory.bytes_on_host(execution)
        return bytes_beyond_host(self.question.cluster, execution, of_rank=held)

    def something_fits(self, *, admits: Admits = every_layout) -> bool:
        """Whether any of the leanest executions fits."""
        return self.has_room and any(map(self._fits, self.leanest(admits=admits)))

    @property
    def has_room(self) -> bool:
        """Whether all GPUs together hold the parameters with their gradients and states once."""
        job, cluster = self.question.job, self.question.cluster
        alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
        states = map(self.forecasts.memory.bytes_of_states, bases(job, self.question.model, alone))
        return min(states, default=0) <= cluster.num_gpus * cluster.gpu.usable_bytes

    def leanest(self, *, admits: Admits = every_layout) -> Iterator[Execution]:
        """Executions with most sharding and recompute, at the smallest and largest micro-batch."""
        job, model = self.question.job, self.question.model
        for choice in lean_layouts(job, model, self.question.cluster):
            if admits(choice.layout):
                yield from self.extremes(considered(job, model, choice)[0])

    def extremes(self, some: Iterable[Execution]) -> Iterator[Execution]:
        """The smallest micro-batch and the largest, with as much recompute as is open."""
        recomputed = {base.layout: base for base in some}
        for base in recomputed.values():
            sizes = sizes_on(self.question.job, base.layout.data_world_size)
            yield from (sized(base, self.question.job, size) for size in sorted({sizes[0], sizes[-1]}))

    def least_of(self, some: Iterable[Execution]) -> Execution | None:
        """What needs least memory; None where there is nothing."""
        bounds = sorted((self.forecasts.memory.least_bytes(one), number, one) for number, one in enumerate(some))
        least, found = inf, None
        for bound, _, execution in bounds:
            if bound >= least:
                break
            high = self.forecasts.memory.high_bytes(execution, most=least)
            if high < least:
                least, found = high, execution
        return found

    def least_of_all(self, *, admits: Admits = every_layout) -> Execution | str:
        """The leanest execution that needs least memory; where none is considered, the reason."""
        job, model = self.question.job, self.question.model
        least = self.least_of(self.leanest(admits=admits))
        if least is not None:
            return least
        choices = (choice for choice in self.question.layouts if admits(choice.layout))
        reasons = (considered(job, model, choice)[1] for choice in choices)
        return next((reason for reason in reasons if reason), "no layout has so many sequences for each of its ranks")

    def lack_on_host(self, execution: Execution) -> tuple[int, str] | None:
        """Bytes that an execution that fits the GPUs takes of a too small host, with a sentence."""
        held = self._beyond_host(execution)
        if held is None or not self.forecasts.fits(execution):
            return None
        offload = f"offload {execution.offload} would put {held / GIB:.1f} GiB into the host's memory"
        most = f"more than {HOST_OVER_GPU_MEMORY:.0f} times what its GPUs have"
        return held, f"{offload}, {most}; where it has as much, state train.offload: {execution.offload}"

    @property
    def found(self) -> list[Found]:
        """The best of each strategy that fits."""
        return [one.best for one in self.strategies.values() if one.best is not None]

    @property
    def fastest(self) -> list[Found]:
        """The same, room for a screen or not."""
        return [one.tighter or one for one in self.found]

    def _roomy(self, found: Found) -> Found:
        """Of the same layout what takes least seconds, chances to fit beside a screen counted."""
        tight = best = replace(found, chance=self._chance(found.execution))
        layout, sizes = found.execution.layout, sizes_on(self.question.job, found.execution.layout.data_world_size)
        bases = (base for base in self.strategies[layout.strategy].bases if tight.chance < 1 and base.layout == layout)
        every = ((base, n) for base in bases for n in sizes)
        near = (one for one in every if self.forecasts.least_seconds_of(*one) < tight.likely_seconds)
        for one in sorted((sized(base, self.question.job, n) for base, n in near), key=self.forecasts.seconds):
            if (seconds := self.forecasts.seconds(one)) < best.likely_seconds and self._fits(one):
                other = Found(execution=one, seconds=seconds, chance=self._chance(one), tighter=tight)
                best = min(best, other, key=lambda found: found.likely_seconds)
        return best

    def _chance(self, execution: Execution) -> float:
        """That an execution which fits does so beside a screen that the card may drive."""
        screen, usable = self.question.screen_bytes, self.question.cluster.gpu.usable_bytes
        if not screen or self.forecasts.memory.fits(execution, usable - screen):
            return 1.0
        held = self.forecasts.of(execution).memory.peak_reserved_bytes
        return errors_of(OWN, execution.layout).chance_below((usable - screen) / held)


def search_offloads(question: Question, *, within: float = inf, all_strategies: bool = True) -> list[Search]:
    """Finds the best of each strategy with every offload that a job leaves open, nothing if all
    take longer than `within` seconds. First stands the search with the least offload that anything
    fits with, or the first if nothing fits."""
    searches: list[Search] = []
    tie = 1 + tie_of(question.cluster.gpu)
    for offload in offloads(question.job, question.cluster):
        search = Search(question.with_offload(offload))
        known = [one for before in searches for one in before.found]
        if known and question.cluster.num_gpus > _MOST_OFFLOADED:
            break
        limit = tie * least_of(known, goal="fastest", cluster=question.cluster)
        if search.has_room if all_strategies or min(limit, within) < inf else search.something_fits():
            search.look(limit=limit, within=within, all_strategies=all_strategies and not known)
        # Searches with less offload, with which nothing fits, have no say.
        if search.found and searches and not searches[0].found:
            searches.clear()
        searches.append(search)
    return searches


def chosen(searches: Sequence[Search]) -> tuple[Search, Found] | None:
    """What is chosen of some searches on one cluster, and its search; None where nothing fits."""
    found = {id(one): (search, one) for search in searches for one in search.found}
    if not found:
        return None
    job, cluster = searches[0].question.job, searches[0].question.cluster
    return found[id(chosen_of((one for _, one in found.values()), goal=job.goal, cluster=cluster))]


def best_alone(question: Question, *, limit: float = inf) -> Candidate | None:
    """The choice on all hardware; None if nothing fits, or takes at most `limit` seconds."""
    best = chosen(search_offloads(question, within=limit, all_strategies=False))
    return best and best[0].forecasts.candidate(best[1].execution)
