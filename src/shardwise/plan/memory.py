"""Memory of an execution: the largest instant of every distinct rank, with an interval, what is reserved, and what lies
outside the allocator."""

from __future__ import annotations

from shardwise.plan.instants import instants
from shardwise.plan.margins import context_bytes, doubt_bytes, reserved_bytes
from shardwise.plan.parts import parts
from shardwise.plan.persistent import Holding, holdings
from shardwise.plan.saved import Alive
from shardwise.plan.scene import Flight, Scene, flights
from shardwise.plan.work import Work
from shardwise.spec.plan import PARTS, MemoryForecast, RankMemory


def forecast_memory(work: Work, *, held: tuple[Holding, ...] | None = None) -> MemoryForecast:
    """The peak of every distinct rank, and of the rank that needs most.

    The interval's upper end is the highest of all instants, and not only that of the peak: an instant that needs less
    but is known less well may need more.

    Args:
        work: the job under one execution.
        held: its `holdings_of`, where the caller has them already; they do not depend on the micro-batch.
    """
    if held is None:
        held = holdings_of(work)
    context = context_bytes(work.cluster, work.execution.layout)
    worst_instant, worst = "", RankMemory(ranks=(), peak_bytes=-1, parts={})
    ranks: list[RankMemory] = []
    reserved = high = 0.0
    for holding in held:
        fullest_instant, fullest = "", RankMemory(ranks=(), peak_bytes=-1, parts={})
        places = holding.ranks(work.execution.layout)
        for name, alive in moments(work, holding):
            rank = _rank_memory(alive, context=context, ranks=places)
            reserved = max(reserved, reserved_bytes(rank.parts, sharded=work.sharded))
            high = max(high, rank.peak_bytes + doubt_bytes(rank.parts))
            if rank.peak_bytes > fullest.peak_bytes:
                fullest_instant, fullest = name, rank
        ranks.append(fullest)
        if fullest.peak_bytes > worst.peak_bytes:
            worst_instant, worst = fullest_instant, fullest
    return MemoryForecast(
        capacity_bytes=work.cluster.gpu.memory_bytes,
        peak_bytes=worst.peak_bytes,
        peak_reserved_bytes=round(reserved),
        peak_low_bytes=round(worst.peak_bytes - doubt_bytes(worst.parts)),
        peak_high_bytes=round(max(high, reserved)),
        peak_instant=worst_instant,
        ranks=tuple(ranks),
    )


def holdings_of(work: Work) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank of an execution."""
    momentum = work.job.train.momentum > 0
    return tuple(
        holding
        for part in parts(work.model, work.inventory, work.execution.layout)
        for holding in holdings(part, work.execution, types=work.types, momentum=momentum, host_apart=work.setting.cuda)
    )


def moments(work: Work, holding: Holding) -> list[tuple[str, Alive]]:
    """Every named instant of a step on the ranks of a holding, for every way their pipeline is full."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    return [
        named
        for flight in flights(layout, pp=holding.part.pp, num_micro_batches=micros)
        for named in instants(scene_of(work, holding, flight))
    ]


def scene_of(work: Work, holding: Holding, flight: Flight) -> Scene:
    """The scene of a micro-batch of the execution's own size."""
    return Scene(
        work=work,
        holding=holding,
        flight=flight,
        tokens=work.tokens,
        head_tokens=work.head_tokens,
        chunks=work.tokens > work.head_tokens,
        whole=work.replicated or flight.gradients,
        fills=flight.pairs > 1,
    )


def _rank_memory(alive: Alive, *, context: int, ranks: tuple[int, ...]) -> RankMemory:
    counts = {part: round(alive.get(part, 0)) for part in PARTS}
    counts["context"] = context
    return RankMemory(ranks=ranks, peak_bytes=sum(counts.values()), parts=counts)
