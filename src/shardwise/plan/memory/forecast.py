"""Memory of an execution: the peak of every distinct rank, with an interval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardwise.plan.memory.instants import instants
from shardwise.plan.memory.margins import context_bytes, doubt_bytes, reserved_bytes, upper_end
from shardwise.plan.memory.parts import parts
from shardwise.plan.memory.persistent import Holding, holdings
from shardwise.plan.memory.saved import Alive
from shardwise.plan.memory.work import Scene, Work, flights
from shardwise.spec.plan import PARTS, MemoryForecast, RankMemory


def forecast_memory(work: Work, *, held: tuple[Holding, ...] | None = None) -> MemoryForecast:
    """The peak of every distinct rank, and of the rank that needs most.

    The interval ends at the highest upper end of all instants: one that is less certain may exceed that of the peak.

    Args:
        work: the job under one execution.
        held: its `holdings_of`, where they are known.
    """
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    alike: dict[object, _Peak] = {}
    peaks: list[_Peak] = []
    for holding in holdings_of(work) if held is None else held:
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
    context = context_bytes(work.cluster, work.execution.layout)
    named = [(name, _rank_memory(alive, context=context)) for name, alive in moments(work, holding)]
    instant, fullest = max(named, key=lambda one: one[1].peak_bytes)
    reserved = max(reserved_bytes(memory.parts, sharded=work.sharded) for _, memory in named)
    high = max(memory.peak_bytes + doubt_bytes(memory.parts) for _, memory in named)
    return _Peak(instant, fullest, reserved, high)


def upper_ends(work: Work, holding: Holding) -> Iterator[float]:
    """The upper end of the interval at every instant on the ranks of a holding."""
    context, sharded = context_bytes(work.cluster, work.execution.layout), work.sharded
    return (upper_end(alive, context=context, sharded=sharded) for _, alive in moments(work, holding))


def holdings_of(work: Work) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank of an execution."""
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


def moments(work: Work, holding: Holding) -> Iterator[tuple[str, Alive]]:
    """Every named instant of a step on the ranks of a holding, for each way their pipeline is full."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    for flight in flights(layout, pp=holding.part.pp, num_micro_batches=micros):
        yield from instants(Scene(work, holding, flight))


def _rank_memory(alive: Alive, *, context: int) -> RankMemory:
    counts = {part: round(alive.get(part, 0)) for part in PARTS}
    counts["context"] = context
    return RankMemory(ranks=(), peak_bytes=sum(counts.values()), parts=counts)
