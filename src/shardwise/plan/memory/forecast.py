"""Memory of an execution: each distinct rank's peak, with an interval; peaks of many for search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from shardwise.plan.costs.fsdp import turns
from shardwise.plan.costs.recompute import saved_on_host
from shardwise.plan.memory.instants import instants
from shardwise.plan.work import (
    Alive,
    Holding,
    Inventory,
    Scene,
    Work,
    context_bytes,
    ends,
    flights,
    holdings,
    parts,
    work_of,
)
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import stages_per_rank
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import PARTS, MemoryForecast, RankMemory


def forecast_memory(work: Work, known: Mapping[object, Peak] | None = None) -> MemoryForecast:
    """The peak of every distinct rank, and of the largest. The interval ends at the highest upper
    end of all instants, perhaps a less certain one. `known`: of some ranks (`Peaks.known`)."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    context, known = context_bytes(work.cluster, layout), known or {}
    alike: dict[object, Peak] = {}
    peaks: list[tuple[Peak, RankMemory]] = []
    for holding in holdings_of(work):
        part = holding.part
        # Ranks that hold the same, with as much in flight, have one peak.
        key = (part.inventory, holding.shards, *flights(layout, pp=part.pp, num_micro_batches=micros))
        if key not in alike:
            alike[key] = known.get(_place(holding)) or _peak(work, holding)
        peak = alike[key]
        counts = {part: round(peak.alive.get(part, 0)) for part in PARTS} | {"context": context}
        peaks.append((peak, RankMemory(ranks=holding.ranks(layout), peak_bytes=sum(counts.values()), parts=counts)))
    fullest, memory = max(peaks, key=lambda one: one[0].held)
    reserved = max(peak.reserved for peak, _ in peaks)
    return MemoryForecast(
        capacity_bytes=work.cluster.gpu.usable_bytes,
        peak_bytes=memory.peak_bytes,
        peak_reserved_bytes=round(reserved),
        peak_low_bytes=round(memory.peak_bytes - fullest.doubt),
        peak_high_bytes=round(max(reserved, *(peak.high for peak, _ in peaks))),
        peak_instant=fullest.instant,
        ranks=tuple(memory for _, memory in peaks),
    )


class Peak(NamedTuple):
    """The fullest instant of a rank, what is alive at it, and in all with the context, in doubt;
    and the most it reserves, or may have alive, at any instant."""

    instant: str
    alive: Alive
    held: int
    doubt: float
    reserved: float
    high: float

    @property
    def end(self) -> int:
        """The most of both."""
        return round(max(self.high, self.reserved))


def _place(holding: Holding) -> tuple[object, ...]:
    """Where the ranks of a holding are; the first shard stands for those that hold as much."""
    return holding.part.pp, holding.part.tp.start, holding.shards.start


def _peak(work: Work, holding: Holding, *, most: float = inf) -> Peak:
    """Of the instants up to the first that needs more than `most`."""
    context, sharded = context_bytes(work.cluster, work.execution.layout), work.sharded
    fullest, most_reserved, highest = ("", Alive(), -1, 0.0), 0.0, 0.0
    for name, alive in moments(work, holding):
        held, doubt, reserved = ends(alive, context=context, sharded=sharded)
        if held > fullest[2]:
            fullest = (name, alive, held, doubt)
        # Doubt differs by part: a lower instant may have the higher end.
        highest = max(highest, held + doubt)
        most_reserved = max(most_reserved, reserved)
        if held + doubt > most or reserved > most:
            break
    return Peak(*fullest, most_reserved, highest)


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
    `beside`: the work of other micro-batches in flight, where their rows have another length;
    `gradients`: only where those of an earlier micro-batch exist, or only where none do."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    for flight in flights(layout, pp=holding.part.pp, num_micro_batches=micros):
        if gradients in (None, flight.gradients):
            for scene in turns(Scene(work, holding, flight, beside)):
                yield from instants(scene)


@lru_cache(maxsize=8)
def _spread(_inventory: Inventory, _cluster: str, _momentum: float) -> dict[object, Any]:
    """What depends on how ranks of a cluster share a model, and on nothing of sequences and
    batches: questions that are asked in a row have it in common."""
    return {}


@dataclass(kw_only=True, eq=False)
class Peaks:
    """The upper ends of memory forecasts of one job on one kind of GPU, and their lower bound.
    `shared`: works of the job on other clusters; `known`: peaks of distinct ranks by execution."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    document: float | None = None
    shared: dict[object, Work] = field(default_factory=dict[object, Work])
    _works: dict[object, Work] = field(default_factory=dict[object, Work])
    known: dict[Execution, dict[object, Peak]] = field(default_factory=dict[Execution, dict[object, Peak]])
    _last: tuple[Execution, Work] | None = None

    def __post_init__(self) -> None:
        self._spread = _spread(self.inventory, repr(self.cluster), self.job.train.momentum)

    def fits(self, execution: Execution, capacity: int) -> bool:
        """Whether `high_bytes` is no more than so many."""
        if execution not in self.known and self.least_bytes(execution) > capacity:
            return False
        return self.high_bytes(execution, most=capacity) <= capacity

    def high_bytes(self, execution: Execution, *, most: float = inf) -> int:
        """`MemoryForecast.peak_high_bytes` of an execution: of all instants of every distinct rank;
        where that is above `most`, of some, which are not kept."""
        if (known := self.known.get(execution)) is None:
            work, known = self.work(execution), dict[object, Peak]()
            for holding in self._fullest(execution):
                known[_place(holding)] = peak = _peak(work, holding, most=most + 0.5)  # `end` is rounded
                if peak.end > most:
                    return peak.end
            self.known[execution] = known
        return max(peak.end for peak in known.values())

    def least_bytes(self, execution: Execution) -> float:
        """A lower bound: weights and optimizer states of the fullest rank, with all its gradients
        or what its blocks save of one micro-batch."""
        work = self.work(execution)
        block = 0 if work.saves_on_host else work.of_block.saved * work.tokens
        return context_bytes(self.cluster, execution.layout) + max(
            # The first block may save less, and is not counted.
            one.stored + one.optimizer + max(one.gradients, max(0, len(one.part.span) - 1) * block)
            for one in self._fullest(execution)
        )

    def bytes_of_states(self, execution: Execution) -> int:
        """Weights, gradients and optimizer states of the fullest rank."""
        return max(one.stored + one.optimizer + one.gradients for one in self._fullest(execution))

    def bytes_on_host(self, execution: Execution) -> int:
        """Bytes in the host's memory, offloaded or saved by blocks, for the rank with most."""
        work = self.work(execution)
        return max(one.on_host + saved_on_host(work, one) for one in self._fullest(execution))

    def work(self, execution: Execution) -> Work:
        """An execution with the numbers that its forecasts share."""
        if self._last is not None and self._last[0] is execution:
            return self._last[1]
        blocks = (execution.precision, execution.gradient_checkpointing, execution.compile, execution.mlp)
        attention, layout = execution.attn_implementation, execution.layout
        key = (layout.ranks_per_row, layout.tp, execution.gathers_weights, attention, *blocks)
        if key not in self._works:
            if key not in self.shared:
                model, cluster, inventory = self.model, self.cluster, self.inventory
                made = work_of(self.job, model=model, cluster=cluster, execution=execution, inventory=inventory)
                self.shared[key] = made
            place = {"cluster": self.cluster, "document": self.document, "memo": self._spread}
            self._works[key] = replace(self.shared[key], **place)
        made = self._works[key].under(execution)
        self._last = execution, made
        return made

    def _fullest(self, execution: Execution) -> Iterable[Holding]:
        """The first shard of each distinct pipeline rank, which holds most; all shards for AdamW in
        8 bits, which keeps states of small tensors in 32."""
        layout = execution.layout
        stages = ("parts", layout.tp, layout.pp, layout.ep, stages_per_rank(layout.schedule))
        held = (execution.precision, execution.optimizer, execution.offload)
        key = (*stages, layout.weight_shards, layout.shard_degree, *held)
        if key not in self._spread:
            if stages not in self._spread:
                self._spread[stages] = parts(self.model, self.inventory, layout, distinct=True)
            every = execution.optimizer_rule.in_8_bits
            work = self.work(execution)
            self._spread[key] = tuple(
                holding
                for part in self._spread[stages]
                # `torch.chunk` fills the first slice first, so that no other holds more.
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
        return self._spread[key]
