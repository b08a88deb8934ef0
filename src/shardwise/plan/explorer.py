"""The best of very many executions: those that a bound rules out are never forecast, and none that could be the best is
ruled out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from shardwise.plan.bounds import Bounds, Rung
from shardwise.plan.choices import RECOMPUTE_ORDER, bases, sized, why_left_out
from shardwise.plan.descent import Descent
from shardwise.plan.frontier import Family
from shardwise.plan.groups import Group, by_size
from shardwise.plan.host import host_is_too_small
from shardwise.plan.memory import forecast_memory
from shardwise.plan.opening import Opener
from shardwise.plan.paces import Pace
from shardwise.plan.products import Choice
from shardwise.plan.question import Question, at_mean_length, work_on
from shardwise.plan.ranking import figures_of, simplicity
from shardwise.plan.timeline import forecast_time
from shardwise.plan.too_large import TooLarge
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.spec.layout import Layout
from shardwise.spec.plan import MemoryForecast, TimeForecast

#: Of a strategy that cannot be chosen, so many groups of each recompute are looked at for an execution that fits.
_GROUPS_TRIED = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """An execution with all that is known of it."""

    work: Work
    memory: MemoryForecast
    time: TimeForecast


@dataclass(kw_only=True, slots=True)
class Effort:
    """How many executions were open, and how many needed a forecast.

    Attributes:
        open: considered, by a bound or a forecast.
        is_large: so many are open on the whole cluster that those of no interest are not looked at closely.
        memory: forecasts of memory made.
        time: forecasts of time made.
    """

    open: int = 0
    is_large: bool = False
    memory: int = 0
    time: int = 0


class Explorer:
    """Looks for the best executions of one question.

    Args:
        question: whose.
        prune: leave out what a bound rules out; without, everything is forecast, with the same answer.
        timed: bounds of time are of use; without, all that can be asked is what fits.
        bounds: those of the same question about other numbers of the same GPU, if it was asked before.
    """

    def __init__(
        self, question: Question, *, prune: bool = True, timed: bool = True, bounds: Bounds | None = None
    ) -> None:
        self.question = question
        self.effort = Effort()
        self.bounds = bounds or Bounds(question, timed=timed)
        self._prune = prune
        self._peaks = question.peaks
        self._known = TooLarge()

    @property
    def opener(self) -> Opener:
        """Of families; made when asked for, so that nothing points in a circle and all goes at once when it is left."""
        return Opener(self.question, bounds=self.bounds, known=self._known, groups=self._considered, prune=self._prune)

    def why_left_out(self, choice: Choice, *, host: bool = True) -> str | None:
        """Why a layout is not considered; None where it is. Without `host` that one's memory is not asked for."""
        reason = why_left_out(self.question.job, self.question.model, choice)
        return reason or (host_is_too_small(self.question, choice) if host else None)

    def groups(self, choice: Choice) -> Iterator[Group]:
        """The executions of a layout."""
        for base in bases(self.question.job, self.question.model, choice):
            ladder = self.bounds.ladder(choice.cluster, base)
            self.effort.open += len(ladder)
            yield Group(cluster=choice.cluster, base=base, ladder=ladder)

    def _considered(self, choice: Choice) -> Iterator[Group]:
        return self.groups(choice) if self.why_left_out(choice) is None else iter(())

    def best(
        self,
        groups: Iterable[Group],
        *,
        enough: tuple[float, ...] | None = None,
        families: Sequence[Family] = (),
        strategy: str = "",
    ) -> Forecast | None:
        """The execution that fits and is the best for the goal; None where there is none within `enough`.

        Sizes come in the order of what they take at least, out of all groups; when even that is more than the best
        one found takes, nothing better can follow.

        Args:
            groups: where to look.
            enough: figures beyond which nothing is of interest.
            families: where to look too, for layouts of one strategy.
            strategy: its name.
        """
        descent = Descent(
            filter(self.may_fit, groups),
            list(self.opener.of_interest(families, strategy=strategy, enough=enough)),
            least=self._order,
            opened=lambda family: filter(self.may_fit, self.opener.opened(family, strategy)),
            enough=enough,
            prune=self._prune,
        )
        best: tuple[Group, Rung] | None = None
        best_key: tuple[object, ...] = ()
        for group, index, number in descent:
            rung = group.ladder[index]
            if descent.is_beyond(self._least(group, rung)) or not self._may_be_within(descent, group, rung):
                continue
            figures = self._figures(group, self._seconds(group, rung))
            key = (figures, simplicity(group.base), index, number)
            if (best is None or key < best_key) and not descent.is_beyond(figures) and self._fits(group, rung):
                best, best_key = (group, rung), key
                descent.reached(figures)
        return None if best is None else self.forecast(best[0].cluster, self._sized(best[0], best[1].size))

    def forecast(self, cluster: Cluster, execution: Execution) -> Forecast:
        """All that is known of any execution."""
        work, memory = self.memory(cluster, execution)
        return Forecast(work=work, memory=memory, time=self.time(work))

    def _may_be_within(self, descent: Descent, group: Group, rung: Rung) -> bool:
        """What is quick to say, before the actions of a pipeline are laid out, which is not."""
        if not self._prune or rung.pieces is None:
            return True
        if group.is_too_large(rung) or self._is_beyond_bound(group, rung):
            return False
        if group.base.layout.pp == 1:
            return True
        seconds = self._pace(group).through_stages(rung.pieces, size=rung.size, micros=rung.micros)
        return not descent.is_beyond(self._figures(group, seconds)) and self._fits(group, rung)

    def _is_beyond_bound(self, group: Group, rung: Rung) -> bool:
        return self.bounds.bytes(group.cluster, group.base, rung) > group.cluster.gpu.memory_bytes

    def _seconds(self, group: Group, rung: Rung) -> float:
        self.effort.time += 1
        if not self._prune or rung.pieces is None:
            return self.time(work_on(self.question, group.cluster, self._sized(group, rung.size))).step_seconds
        return self._pace(group).seconds(rung.pieces, size=rung.size, micros=rung.micros)

    def _pace(self, group: Group) -> Pace:
        if group.pace is None:
            group.pace = Pace(self.bounds.at_mean_length(group.cluster, group.base))
        return group.pace

    def fits(self, groups: Iterable[Group], *, every_size: bool = False) -> bool:
        """Whether any execution fits: one of the leanest sizes of a group, or of all its sizes."""
        likely = (group for group in groups if self.may_fit(group))
        sizes = ((group, rung) for group in likely for rung in (group.ladder if every_size else group.leanest()))
        return any(self._fits(group, rung, halving=every_size) for group, rung in sizes)

    def has_room(self, cluster: Cluster) -> bool:
        """Whether all GPUs of a cluster together may have room for the job: no bound says that they have not."""
        alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
        each = bases(self.question.job, self.question.model, alone)
        return not self._prune or any(self.bounds.has_room(cluster, base) for base in each)

    def may_fit(self, group: Group) -> bool:
        """Whether no bound says that none of its sizes fits."""
        least = self.bounds.least_bytes(group.cluster, group.base, group.ladder)
        return not self._prune or least <= group.cluster.gpu.memory_bytes

    def one_that_fits(self, groups: Sequence[Group]) -> tuple[Work, MemoryForecast]:
        """Of some groups that may be fast, an execution that fits; where none does, the one that needs least memory."""
        likely = sorted(filter(self.may_fit, groups), key=lambda group: self._order(group, 0))
        for recompute in RECOMPUTE_ORDER:
            alike = (group for group in likely if group.base.gradient_checkpointing == recompute)
            for group in islice(alike, _GROUPS_TRIED):
                for rung in group.ladder:
                    if self._fits(group, rung):
                        return self.memory(group.cluster, self._sized(group, rung.size))
        return self.least(groups)

    def least(self, groups: Sequence[Group]) -> tuple[Work, MemoryForecast]:
        """The execution that needs least memory, for saying what is missing."""
        smallest = [(g, min(g.ladder, key=by_size)) for g in groups]
        needs = sorted((self.bounds.bytes(g.cluster, g.base, rung), n) for n, (g, rung) in enumerate(smallest))
        least, found = float("inf"), smallest[0]
        for bound, number in needs:
            if bound >= least:
                break
            group, rung = smallest[number]
            need = self._peaks.high_bytes(self._sized(group, rung.size))
            if need < least:
                least, found = need, (group, rung)
        return self.memory(found[0].cluster, self._sized(found[0], found[1].size))

    def memory(self, cluster: Cluster, execution: Execution) -> tuple[Work, MemoryForecast]:
        """The memory of any execution."""
        work = work_on(self.question, cluster, execution)
        return work, forecast_memory(work)

    def time(self, work: Work) -> TimeForecast:
        """The time of any execution."""
        return forecast_time(at_mean_length(self.question, work), num_rows=self.question.num_rows)

    def _sized(self, group: Group, size: int) -> Execution:
        return sized(group.base, self.question.job, self.question.model, size)

    def _fits(self, group: Group, rung: Rung, *, halving: bool = True) -> bool:
        if not self._prune:
            _, memory = self.memory(group.cluster, self._sized(group, rung.size))
            return memory.peak_high_bytes <= memory.capacity_bytes
        if group.is_too_large(rung):
            return False
        if self._has_room(group, rung):
            return True
        if halving and not group.too_large:
            self._find_too_large(group)
        group.note_too_large(rung)
        return False

    def _find_too_large(self, group: Group) -> None:
        """Where one size is too large, its smaller neighbours often are: halving finds the smallest of them."""
        sizes = sorted((rung for rung in group.ladder if not group.is_too_large(rung)), key=by_size)
        low, high = 0, len(sizes)
        while low < high:
            middle = (low + high) // 2
            if self._has_room(group, sizes[middle]):
                low = middle + 1
            else:
                group.note_too_large(sizes[middle])
                high = middle

    def _has_room(self, group: Group, rung: Rung) -> bool:
        capacity = group.cluster.gpu.memory_bytes
        if self._is_beyond_bound(group, rung):
            return False
        execution, flying = self._sized(group, rung.size), group.in_flight(rung)
        if self._known.rules_out(execution, flying):
            return False
        for one in self._leanest_first(execution, flying):
            self.effort.memory += 1
            if self._peaks.high_bytes(one) > capacity:
                self._known.note(one, flying)
                return False
        return True

    def _leanest_first(self, execution: Execution, flying: int) -> Iterator[Execution]:
        """An execution behind the one that differs in nothing but being sharded over as many ranks as there are.

        Where that does not fit, nothing like it does; it is looked at once.
        """
        layout = execution.layout
        most = self.question.cluster.num_gpus // (layout.tp * layout.pp * layout.cp)
        if 1 < layout.dp_shard < most:
            leanest = replace(execution, layout=replace(layout, dp_shard=most))
            if self._known.asks_first(leanest, flying):
                yield leanest
        yield execution

    def _order(self, group: Group, index: int) -> tuple[float, ...]:
        """Figures that grow along a ladder, and that none of its sizes stays below."""
        layout = group.base.layout
        stages = 1 if layout.schedule == "sequential" else layout.pp
        return self._figures(group, group.ladder[index].seconds / stages * (1 - 1e-9))

    def _least(self, group: Group, rung: Rung) -> tuple[float, ...]:
        return self._figures(group, self.bounds.seconds(group.base, rung))

    def _figures(self, group: Group, seconds: float) -> tuple[float, ...]:
        return figures_of(
            self.question.job.goal, seconds=seconds, num_gpus=group.base.layout.world_size, gpu=group.cluster.gpu
        )
