"""The executions of one question: what a bound says of them, whether they fit, how long they take, and all that is
known of one. Those that a bound rules out are never forecast, and none that could be the best is ruled out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

from shardwise.plan.bounds import Bounds
from shardwise.plan.candidates import Forecast
from shardwise.plan.choices import RECOMPUTE_ORDER, bases, sized, why_left_out
from shardwise.plan.climbs import Climb, Rung
from shardwise.plan.effort import Effort
from shardwise.plan.groups import Flying, Group, by_size
from shardwise.plan.host import host_is_too_small
from shardwise.plan.memory import forecast_memory
from shardwise.plan.opening import Opener
from shardwise.plan.outlook import Outlooks
from shardwise.plan.paces import Pace
from shardwise.plan.products import Choice
from shardwise.plan.question import Question, at_mean_length, with_least_states, work_on
from shardwise.plan.ranking import figures_of
from shardwise.plan.timeline import forecast_time
from shardwise.plan.too_large import TooLarge
from shardwise.plan.traffic import least_traffic
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution, Offload, Recompute
from shardwise.spec.layout import Layout
from shardwise.spec.plan import MemoryForecast, TimeForecast

#: Of a strategy that cannot be chosen, so many groups of each recompute are looked at for an execution that fits.
_GROUPS_TRIED = 2


class Explorer:
    """Looks for the best executions of one question.

    Args:
        question: whose.
        prune: leave out what a bound rules out; without, everything is forecast, with the same answer.
        timed: bounds of time are of use; without, all that can be asked is what fits.
        bounds: those of the same question about other numbers of the same GPU, if it was asked before.
        compared: further offloads, for which a part of the cluster may have room.
        host_last: whether the host's memory has room is asked of what fits the GPUs alone, which is less.
    """

    def __init__(
        self,
        question: Question,
        *,
        prune: bool = True,
        timed: bool = True,
        bounds: Bounds | None = None,
        compared: Sequence[Offload] = (),
        host_last: bool = False,
    ) -> None:
        self.question = question
        self.effort = Effort()
        self.bounds = bounds or Bounds(question, timed=timed)
        self.prunes = prune
        self._compared = compared
        self._host_last = host_last
        self._host_lacks: dict[tuple[Layout, int], str | None] = {}
        self._peaks = question.peaks
        self._known = TooLarge()
        self._lean = with_least_states(question)
        self.outlooks = Outlooks(question, self.bounds)

    @property
    def opener(self) -> Opener:
        """Of families; made when asked for, so that nothing points in a circle and all goes at once when it is left."""
        return Opener(
            self.question,
            lean=self._lean,
            bounds=self.bounds,
            known=self._known,
            groups=self._considered,
            outlooks=self.outlooks,
            prune=self.prunes,
        )

    def why_left_out(self, choice: Choice, *, host: bool = True) -> str | None:
        """Why a layout is not considered; None where it is. Without `host` that one's memory is not asked for."""
        reason = why_left_out(self.question.job, self.question.model, choice)
        return reason or (self._lacks_on_host(choice) if host and not self._host_last else None)

    def _lacks_on_host(self, choice: Choice) -> str | None:
        key = (choice.layout, choice.cluster.num_gpus)
        if key not in self._host_lacks:
            self._host_lacks[key] = host_is_too_small(self.question, choice)
        return self._host_lacks[key]

    def groups(self, choice: Choice, recompute: Recompute | None = None) -> Iterator[Group]:
        """The executions of a layout; with a certain recompute, where one is said."""
        for base in bases(self.question.job, self.question.model, choice):
            if recompute not in (None, base.gradient_checkpointing):
                continue
            alike = self.bounds.alike(choice.cluster, base)
            ladder = self.bounds.ladder_of(alike, choice.cluster, base.layout.data_world_size)
            self.effort.open += len(ladder)
            yield Group(cluster=choice.cluster, base=base, ladder=ladder, alike=alike)

    def _considered(self, choice: Choice, recompute: Recompute) -> Iterator[Group]:
        return self.groups(choice, recompute) if self.why_left_out(choice) is None else iter(())

    def forecast(self, cluster: Cluster, execution: Execution) -> Forecast:
        """All that is known of any execution."""
        work, memory = self.memory(cluster, execution)
        return Forecast(work=work, memory=memory, time=self.time(work))

    def forecast_of(self, group: Group, rung: Rung) -> Forecast:
        """All that is known of a size of a group."""
        return self.forecast(group.cluster, self._sized(group, rung.size))

    def rules_out(self, group: Group, rung: Rung) -> bool:
        """Whether it is quick to say that a size does not fit."""
        return self.prunes and (group.is_too_large(rung) or self._is_beyond_bound(group, rung))

    def _is_beyond_bound(self, group: Group, rung: Rung) -> bool:
        return self.bounds.bytes(group.cluster, group.base, rung) > group.cluster.gpu.usable_bytes

    def climb(self, group: Group) -> Climb:
        """The sizes of a group in the order of what they take at least."""
        if group.climb is None:
            layout = group.base.layout
            group.climb = self.bounds.climb_of(
                group.alike, group.cluster, ranks=layout.data_world_size, pp=layout.pp, schedule=layout.schedule
            )
        return group.climb

    def least_of(self, group: Group, place: int) -> tuple[float, ...]:
        """Figures that a size, and those behind it in that order, do not stay below."""
        layout = group.base.layout
        on_host = self.bounds.seconds_on_host(
            group.alike, ranks=layout.data_world_size, pp=layout.pp, schedule=layout.schedule
        )
        return self._figures(group, self.climb(group).seconds[place] + on_host)

    def least_sending(self, group: Group, rung: Rung) -> tuple[float, ...] | None:
        """Figures that a size does not stay below, with what its blocks send for every micro-batch; None where that is
        not bounded: they send nothing, or once for a step."""
        layout = group.base.layout
        if not self.prunes or not group.base.gathers_weights or group.base.postpones_reduction:
            return None
        if group.traffic is None:
            group.traffic = least_traffic(self.bounds.loads_of(group.alike), group.cluster, [layout])
        seconds = self.bounds.seconds_sending(rung, group.traffic, pp=layout.pp, schedule=layout.schedule)
        return self._figures(group, seconds)

    def least_through_stages(self, group: Group, rung: Rung) -> tuple[float, ...] | None:
        """Figures that a size of a pipeline does not stay below, with all that stages send; None: it is quicker to
        find what they are."""
        if not self.prunes or rung.pieces is None or group.base.layout.pp == 1:
            return None
        seconds = self._pace(group).through_stages(rung.pieces, size=rung.size, micros=rung.micros)
        return self._figures(group, seconds)

    def figures(self, forecast: Forecast) -> tuple[float, ...]:
        """The figures of a forecast for the goal."""
        cluster, layout = forecast.work.cluster, forecast.work.execution.layout
        seconds, goal = forecast.time.step_seconds, self.question.job.goal
        return figures_of(goal, seconds=seconds, num_gpus=layout.world_size, gpu=cluster.gpu)

    def figures_of(self, group: Group, rung: Rung) -> tuple[float, ...]:
        """The figures of a size for the goal."""
        return self._figures(group, self._seconds(group, rung))

    def _seconds(self, group: Group, rung: Rung) -> float:
        self.effort.time += 1
        if not self.prunes or rung.pieces is None:
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
        return any(self.holds(group, rung, halving=every_size) for group, rung in sizes)

    def has_room(self, cluster: Cluster) -> bool:
        """Whether all GPUs of a cluster together may have room for the job: no bound says that they have not.

        With this question's offload, or with one that is compared with it.
        """
        alone = Choice(strategy="single", layout=Layout(), cluster=cluster)
        each = list(bases(self.question.job, self.question.model, alone))
        each += [replace(base, offload=offload) for base in each for offload in self._compared]
        return not self.prunes or any(self.bounds.has_room(cluster, base) for base in each)

    def may_fit(self, group: Group) -> bool:
        """Whether no bound says that none of its sizes fits."""
        least = self.bounds.least_bytes(group.cluster, group.base, group.ladder)
        return not self.prunes or least <= group.cluster.gpu.usable_bytes

    def one_that_fits(self, groups: Sequence[Group]) -> tuple[Work, MemoryForecast]:
        """Of some groups that may be fast, an execution that fits; where none does, the one that needs least memory."""
        likely = sorted(filter(self.may_fit, groups), key=lambda group: self.least_of(group, 0))
        for recompute in RECOMPUTE_ORDER:
            alike = (group for group in likely if group.base.gradient_checkpointing == recompute)
            for group in islice(alike, _GROUPS_TRIED):
                for rung in group.ladder:
                    if self.holds(group, rung):
                        return self.memory(group.cluster, self._sized(group, rung.size))
        return self.least(groups)

    def least(self, groups: Sequence[Group]) -> tuple[Work, MemoryForecast]:
        """The execution that needs least memory, for saying what is missing."""
        smallest = [(g, min(g.ladder, key=by_size)) for g in groups]
        needs = sorted((self.bounds.bytes(g.cluster, g.base, rung), n) for n, (g, rung) in enumerate(smallest))
        least, found = inf, smallest[0]
        for bound, number in needs:
            if bound >= least:
                break
            group, rung = smallest[number]
            execution = self._sized(group, rung.size)
            # The first instant that needs as much is enough to pass over one.
            if least == inf or self._peaks.fits(execution, int(least) - 1):
                least, found = self._peaks.high_bytes(execution), (group, rung)
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

    def holds(self, group: Group, rung: Rung, *, halving: bool = True) -> bool:
        """Whether a size fits the GPUs, and what of it lies in the host's memory that."""
        if not self._fits_gpus(group, rung, halving=halving):
            return False
        layout = group.base.layout
        choice = Choice(strategy=layout.strategy, layout=layout, cluster=group.cluster)
        return not self._host_last or self._lacks_on_host(choice) is None

    def _fits_gpus(self, group: Group, rung: Rung, *, halving: bool) -> bool:
        if not self.prunes:
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
        capacity = group.cluster.gpu.usable_bytes
        if self._is_beyond_bound(group, rung):
            return False
        execution, flying = self._sized(group, rung.size), group.in_flight(rung)
        if self._known.rules_out(execution, flying):
            return False
        for one in self._leanest_first(execution, flying):
            self.effort.memory += 1
            if not self._peaks.fits(one, capacity):
                self._known.note(one, flying)
                return False
        return True

    def _leanest_first(self, execution: Execution, flying: Flying) -> Iterator[Execution]:
        """An execution behind the one that differs in nothing but being sharded over as many ranks as there are.

        Where that does not fit, nothing like it does; it is looked at once. (See `too_large` about AdamW in 8 bits.)
        """
        layout = execution.layout
        most = self.question.cluster.num_gpus // (layout.tp * layout.pp * layout.cp)
        if 1 < layout.dp_shard < most and execution.optimizer != "adamw_8bit":
            leanest = replace(execution, layout=replace(layout, dp_shard=most))
            if self._known.asks_first(leanest, flying):
                yield leanest
        yield execution

    def _figures(self, group: Group, seconds: float) -> tuple[float, ...]:
        return figures_of(
            self.question.job.goal, seconds=seconds, num_gpus=group.base.layout.world_size, gpu=group.cluster.gpu
        )
