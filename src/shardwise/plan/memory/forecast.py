"""Memory of an execution: the peak of every distinct rank, with an interval; and peaks of many for the search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from shardwise.plan.memory.instants import instants
from shardwise.plan.memory.inventory import Inventory
from shardwise.plan.memory.margins import context_bytes, doubt_bytes, ends
from shardwise.plan.memory.parts import Part, parts
from shardwise.plan.memory.persistent import Holding, holdings, shard_degree, weight_degree
from shardwise.plan.memory.saved import Alive
from shardwise.plan.memory.work import Scene, Work, flights, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import stages_per_rank
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import PARTS, MemoryForecast, RankMemory


def forecast_memory(work: Work) -> MemoryForecast:
    """The peak of every distinct rank, and of the rank that needs most. The interval ends at the highest upper end of
    all instants: one that is less certain may exceed that of the peak."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    alike: dict[object, _Peak] = {}
    peaks: list[_Peak] = []
    for holding in holdings_of(work):
        part = holding.part
        key = (part.inventory, holding.shards, *flights(layout, pp=part.pp, num_micro_batches=micros))
        if key not in alike:
            alike[key] = _peak(work, holding)
        memory = replace(alike[key].memory, ranks=holding.ranks(layout))
        peaks.append(alike[key]._replace(memory=memory))
    worst = max(peaks, key=lambda peak: peak.memory.peak_bytes)
    reserved = max(peak.reserved for peak in peaks)
    return MemoryForecast(
        capacity_bytes=work.cluster.gpu.usable_bytes,
        peak_bytes=worst.memory.peak_bytes,
        peak_reserved_bytes=round(reserved),
        peak_low_bytes=round(worst.memory.peak_bytes - doubt_bytes(worst.memory.parts)),
        peak_high_bytes=round(max(reserved, *(peak.high for peak in peaks))),
        peak_instant=worst.instant,
        ranks=tuple(peak.memory for peak in peaks),
    )


class _Peak(NamedTuple):
    """The fullest instant of a rank, and the most it reserves, or may have alive, at any instant."""

    instant: str
    memory: RankMemory
    reserved: float
    high: float


def _peak(work: Work, holding: Holding) -> _Peak:
    context, sharded = context_bytes(work.cluster, work.execution.layout), work.sharded
    seen = list(moments(work, holding))
    held, most, reserved = zip(*(ends(alive, context=context, sharded=sharded) for _, alive in seen), strict=True)
    instant, fullest = seen[held.index(max(held))]
    return _Peak(instant, _rank_memory(fullest, context=context), reserved=max(reserved), high=max(most))


def holdings_of(work: Work) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank of an execution."""
    return work.once("holdings", lambda: _holdings_of(work), stages_per_rank(work.execution.layout.schedule))


def _holdings_of(work: Work) -> tuple[Holding, ...]:
    momentum = work.job.train.momentum > 0
    found: dict[object, tuple[Holding, ...]] = {}
    held: list[Holding] = []
    for part in parts(work.model, work.inventory, work.execution.layout):
        if part.inventory not in found:
            found[part.inventory] = holdings(
                part, work.execution, types=work.types, momentum=momentum, host_apart=work.setting.cuda
            )
        held += (replace(holding, part=part) for holding in found[part.inventory])
    return tuple(held)


def moments(
    work: Work, holding: Holding, *, beside: Work | None = None, gradients: bool | None = None
) -> Iterator[tuple[str, Alive]]:
    """Every named instant of a step on the ranks of a holding, for each way their pipeline is full.

    Args:
        beside: the work of other micro-batches in flight, where their rows have another length.
        gradients: only where those of an earlier micro-batch exist, or only where none do.
    """
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    for flight in flights(layout, pp=holding.part.pp, num_micro_batches=micros):
        if gradients in (None, flight.gradients):
            yield from instants(Scene(work, holding, flight, beside))


def _rank_memory(alive: Alive, *, context: int) -> RankMemory:
    counts = {part: round(alive.get(part, 0)) for part in PARTS}
    counts["context"] = context
    return RankMemory(ranks=(), peak_bytes=sum(counts.values()), parts=counts)


class _Spread:
    """What depends on how ranks of a cluster share a model, and on nothing of sequences and batches: questions that are
    asked in a row have it in common."""

    def __init__(self) -> None:
        self.parts: dict[object, tuple[Part, ...]] = {}
        self.held: dict[object, tuple[Holding, ...]] = {}
        self.memo: dict[object, Any] = {}


@lru_cache(maxsize=8)
def _spread(_inventory: Inventory, _cluster: str, _momentum: float) -> _Spread:
    return _Spread()


@dataclass(kw_only=True, eq=False)
class Peaks:
    """The upper ends of memory forecasts of one job on one kind of GPU, and a lower bound of them."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    document: float | None = None
    _works: dict[object, Work] = field(default_factory=dict[object, Work])
    _highs: dict[Execution, int] = field(default_factory=dict[Execution, int])
    _last: tuple[Execution, Work] | None = None

    def __post_init__(self) -> None:
        self._spread = _spread(self.inventory, repr(self.cluster), self.job.train.momentum)

    def high_bytes(self, execution: Execution) -> int:
        """`MemoryForecast.peak_high_bytes` of an execution."""
        if execution not in self._highs:
            self._highs[execution] = round(max(self._ends(execution)))
        return self._highs[execution]

    def _ends(self, execution: Execution) -> Iterator[float]:
        """What it may have alive, or reserves, at every instant of every distinct rank."""
        work, context = self.work(execution), context_bytes(self.cluster, execution.layout)
        for holding in self._fullest(execution):
            for _, alive in moments(work, holding):
                _, most, reserved = ends(alive, context=context, sharded=work.sharded)
                yield most if most > reserved else reserved

    def fits(self, execution: Execution, capacity: int) -> bool:
        """Whether `high_bytes` is no more than so many."""
        if (high := self._highs.get(execution)) is not None:
            return high <= capacity
        if self.least_bytes(execution) > capacity:
            return False
        most = 0
        for high in self._ends(execution):
            most = max(most, round(high))
            if most > capacity:
                return False
        self._highs[execution] = most
        return True

    def least_bytes(self, execution: Execution) -> float:
        """A lower bound: weights and optimizer states of the fullest rank, with all its gradients or what its blocks
        save of one micro-batch."""
        work = self.work(execution)
        block = work.saved * work.tokens
        return context_bytes(self.cluster, execution.layout) + max(
            # The first block may save less, and is not counted.
            one.stored + one.optimizer + max(one.gradients, max(0, len(one.part.span) - 1) * block)
            for one in self._fullest(execution)
        )

    def bytes_of_states(self, execution: Execution) -> int:
        """Weights, gradients and optimizer states of the fullest rank."""
        return max(one.stored + one.optimizer + one.gradients for one in self._fullest(execution))

    def bytes_on_host(self, execution: Execution) -> int:
        """Bytes that offload puts into the host's memory, for the rank with most of them."""
        return max(one.on_host for one in self._fullest(execution))

    def work(self, execution: Execution) -> Work:
        """An execution with the numbers that its forecasts share."""
        if self._last is not None and self._last[0] is execution:
            return self._last[1]
        key = (
            execution.layout.tp,
            execution.layout.cp,
            execution.gathers_weights,
            execution.attn_implementation,
            execution.precision,
            execution.gradient_checkpointing,
            execution.compile,
        )
        if key not in self._works:
            first = work_of(
                self.job, model=self.model, cluster=self.cluster, execution=execution, inventory=self.inventory
            )
            self._works[key] = replace(first, document=self.document, memo=self._spread.memo)
        made = self._works[key].under(execution)
        self._last = execution, made
        return made

    def _fullest(self, execution: Execution) -> Iterable[Holding]:
        """The first shard of each distinct pipeline rank, which holds most; all shards for AdamW in 8 bits, which keeps
        states of small tensors in 32."""
        layout = execution.layout
        stages = (layout.tp, layout.pp, stages_per_rank(layout.schedule))
        key = (
            *stages,
            weight_degree(layout),
            shard_degree(layout),
            execution.precision,
            execution.optimizer,
            execution.offload,
        )
        if key not in self._spread.held:
            if stages not in self._spread.parts:
                self._spread.parts[stages] = parts(self.model, self.inventory, layout, distinct=True)
            every = execution.optimizer == "adamw_8bit"
            work = self.work(execution)
            self._spread.held[key] = tuple(
                holding
                for part in self._spread.parts[stages]
                if every or part.tp.start == 0
                for holding in holdings(
                    part,
                    execution,
                    types=work.types,
                    momentum=self.job.train.momentum > 0,
                    first_only=not every,
                    host_apart=work.setting.cuda,
                )
            )
        return self._spread.held[key]
