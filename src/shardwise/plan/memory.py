"""Memory of an execution: the largest instant of every distinct rank, with an interval, what is reserved, and what lies
outside the allocator."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.plan.instants import Alive, instants
from shardwise.plan.parts import parts
from shardwise.plan.persistent import Holding, holdings
from shardwise.plan.scene import Scene, flights
from shardwise.plan.work import Work
from shardwise.spec.layout import AXES
from shardwise.spec.plan import PARTS, MemoryForecast, RankMemory
from shardwise.units import MIB

#: Device memory of one NCCL communicator: channels and their buffers, 0.5 to 0.7 GB on eight GPUs.
COMMUNICATOR_BYTES = 600 * MIB

#: How far off each part may be, as a share of it: the half-width of the interval. Persistent bytes are counted, not
#: estimated; saved activations are counted by operator and checked on the CPU; the rest are models of implementations
#: that have not been measured on GPUs by this version, and say so by their width.
_DOUBT = {
    "weights": 0.0,
    "gradients": 0.01,
    "optimizer": 0.0,
    "activations": 0.08,
    "logits": 0.08,
    "communication": 0.15,
    "temporary": 0.50,
    "context": 0.25,
}

#: Reserved over allocated by PyTorch's caching allocator in steady state: 512-byte rounding is nothing beside 2 MiB
#: segments that fragment where tensors come and go. Sharded weights come and go with every block.
_FRAGMENTATION = 0.03
_FRAGMENTATION_SHARDED = 0.06
_SEGMENT_BYTES = 20 * MIB


def forecast_memory(work: Work, *, held: tuple[Holding, ...] | None = None) -> MemoryForecast:
    """The peak of every distinct rank, and of the rank that needs most.

    Args:
        work: the job under one execution.
        held: its `holdings_of`, where the caller has them already; they do not depend on the micro-batch.
    """
    if held is None:
        held = holdings_of(work)
    context = _context_bytes(work)
    worst_instant, worst = "", RankMemory(ranks=(), peak_bytes=-1, parts={})
    ranks: list[RankMemory] = []
    for holding in held:
        instant, alive = _fullest(work, holding)
        rank = _rank_memory(alive, context=context, ranks=holding.ranks(work.execution.layout))
        ranks.append(rank)
        if rank.peak_bytes > worst.peak_bytes:
            worst_instant, worst = instant, rank
    low, high = _interval(worst.parts)
    reserved = _reserved(worst, sharded=work.sharded, context=context)
    return MemoryForecast(
        capacity_bytes=work.cluster.gpu.memory_bytes,
        peak_bytes=worst.peak_bytes,
        peak_reserved_bytes=reserved,
        peak_low_bytes=low,
        peak_high_bytes=max(high, reserved),
        peak_instant=worst_instant,
        ranks=tuple(ranks),
    )


def holdings_of(work: Work) -> tuple[Holding, ...]:
    """Persistent bytes of every distinct rank of an execution."""
    momentum = work.job.train.momentum > 0
    layout = work.execution.layout
    return tuple(
        holding
        for part in parts(work.model, work.inventory, layout)
        for holding in holdings(part, work.execution, types=work.types, momentum=momentum)
    )


def _fullest(work: Work, holding: Holding) -> tuple[str, Alive]:
    """The instant at which most is alive on the ranks of a holding."""
    return max(moments(work, holding), key=lambda moment: sum(moment[1].values()))


def moments(work: Work, holding: Holding) -> Iterator[tuple[str, Alive]]:
    """Every named instant of a step on the ranks of a holding, with what is alive then, part by part."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    for flight in flights(layout, pp=holding.part.pp, num_micro_batches=micros):
        scene = Scene(
            work=work,
            holding=holding,
            flight=flight,
            tokens=work.tokens,
            head_tokens=work.head_tokens,
            chunks=work.chunked and work.tokens > work.head_tokens,
            whole=work.replicated or flight.gradients,
        )
        for name, instant in instants(holding.part):
            yield name, instant(scene)


def _rank_memory(alive: Alive, *, context: int, ranks: tuple[int, ...]) -> RankMemory:
    counts = {part: round(alive.get(part, 0)) for part in PARTS}
    counts["context"] = context
    return RankMemory(ranks=ranks, peak_bytes=sum(counts.values()), parts=counts)


def _context_bytes(work: Work) -> int:
    """The driver's context and one communicator per axis that talks."""
    gpu, layout = work.cluster.gpu, work.execution.layout
    if gpu.kind == "cpu":
        return gpu.context_bytes
    axes = sum(getattr(layout, axis) > 1 for axis in AXES)
    return gpu.context_bytes + axes * COMMUNICATOR_BYTES


def _interval(parts: dict[str, int]) -> tuple[int, int]:
    """Doubts of different parts are independent of each other: their squares add."""
    peak = sum(parts.values())
    doubt = sum((count * _DOUBT[part]) ** 2 for part, count in parts.items()) ** 0.5
    return round(peak - doubt), round(peak + doubt)


def _reserved(rank: RankMemory, *, sharded: bool, context: int) -> int:
    share = _FRAGMENTATION_SHARDED if sharded else _FRAGMENTATION
    persistent = sum(rank.parts[part] for part in ("weights", "gradients", "optimizer"))
    passing = rank.peak_bytes - persistent - context
    return round(rank.peak_bytes + share * passing + 0.01 * persistent) + (_SEGMENT_BYTES if context else 0)
