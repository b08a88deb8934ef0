"""Forecast beside measurement: memory part by part, time, throughput, utilisation. Numbers in, rows out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from shardwise.report.fields import as_number, as_whole, items, number, sections, text, whole
from shardwise.report.nouns import (
    COMMON_PARTS,
    OTHER_PARTS,
    OUTSIDE_PART,
    Comparison,
    MemoryReport,
    RankReport,
)
from shardwise.report.sources import Sources
from shardwise.report.starts import Taken
from shardwise.spec.plan import Candidate, RankMemory
from shardwise.units import format_seconds


def common_parts(parts: dict[str, int]) -> dict[str, int]:
    """A forecast's parts in the words that the measurement has: `COMMON_PARTS`."""
    other = sum(parts.get(name, 0) for name in OTHER_PARTS)
    return {**{name: parts.get(name, 0) for name in COMMON_PARTS[:2]}, "other": other}


def memory_report(sources: Sources, candidate: Candidate | None, steps: Taken) -> MemoryReport:
    """Every rank that the plan or the measurement knows, in order.

    Args:
        sources: the run's files; measured.json is of the candidate's execution.
        candidate: the forecast that ran.
        steps: taken under it.
    """
    forecast = candidate.memory if candidate else None
    by_rank = {rank: memory for memory in (forecast.ranks if forecast else ()) for rank in memory.ranks}
    measured, busy = _measured_ranks(sources, steps.records), utilization_by_rank(steps.steady)
    ranks = tuple(
        _rank_report(rank, by_rank.get(rank), measured.get(rank), busy.get(rank))
        for rank in sorted(by_rank.keys() | measured.keys())
    )
    return MemoryReport(
        kind=text(sources.measured, "kind"),
        capacity_bytes=forecast.capacity_bytes if forecast else None,
        peak_low_bytes=forecast.peak_low_bytes if forecast else None,
        peak_high_bytes=forecast.peak_high_bytes if forecast else None,
        peak_instant=forecast.peak_instant if forecast else None,
        worst_rank=_worst_rank(ranks),
        ranks=ranks,
    )


def _rank_report(
    rank: int, forecast: RankMemory | None, measured: dict[str, int] | None, busy: float | None
) -> RankReport:
    """One rank; the forecast peak is taken without the context, which an allocator's count cannot see."""
    outside = forecast.parts.get(OUTSIDE_PART, 0) if forecast else 0
    parts = {name: measured[name] for name in COMMON_PARTS if name in measured} if measured else None
    return RankReport(
        rank=rank,
        forecast_parts=forecast.parts if forecast else None,
        measured_parts=parts or None,
        forecast_peak_bytes=forecast.peak_bytes - outside if forecast else None,
        measured_peak_bytes=measured.get("peak_memory_bytes") if measured else None,
        gpu_utilization=busy,
    )


def utilization_by_rank(records: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Share by rank of the time of steps, of the ranks that could measure it."""
    shares: dict[int, list[tuple[dict[str, Any], object]]] = {}
    for record in records:
        for rank, share in enumerate(items(record, "gpu_utilization_by_rank")):
            shares.setdefault(rank, []).append((record, share))
    whole = {rank: share_of_time(found) for rank, found in shares.items()}
    return {rank: share for rank, share in whole.items() if share is not None}


def _measured_ranks(sources: Sources, records: Sequence[dict[str, Any]]) -> dict[int, dict[str, int]]:
    """Measured bytes by rank: measured.json, else the highest peak that metrics.jsonl has seen so far."""
    found: dict[int, dict[str, int]] = {}
    for entry in sections(sources.measured, "ranks"):
        rank = whole(entry, "rank")
        if rank is not None:
            found[rank] = {key: value for key in entry if (value := whole(entry, key)) is not None}
    return found or _peaks_so_far(records)


def _peaks_so_far(records: Sequence[dict[str, Any]]) -> dict[int, dict[str, int]]:
    peaks: dict[int, int] = {}
    for record in records:
        for rank, peak in enumerate(items(record, "peak_memory_bytes")):
            if (size := as_whole(peak)) is not None:
                peaks[rank] = max(size, peaks.get(rank, 0))
    return {rank: {"peak_memory_bytes": peak} for rank, peak in peaks.items()}


def _worst_rank(ranks: tuple[RankReport, ...]) -> int | None:
    """The first rank with the highest measured peak, else with the highest forecast."""

    def height(rank: RankReport) -> tuple[int, int, int]:
        return (rank.measured_peak_bytes or 0, rank.forecast_peak_bytes or 0, -rank.rank)

    return max(ranks, key=height).rank if ranks else None


def memory_comparisons(memory: MemoryReport) -> tuple[Comparison, ...]:
    """Peak and parts of the worst rank."""
    worst = memory.worst
    whole_forecast = (worst.forecast_parts if worst else None) or {}
    forecast = common_parts(whole_forecast) if whole_forecast else {}
    measured = (worst.measured_parts if worst else None) or {}
    peak = Comparison(
        what="peak memory",
        unit="bytes",
        forecast=worst.forecast_peak_bytes if worst else None,
        measured=worst.measured_peak_bytes if worst else None,
        note=f"rank {worst.rank}, inside the allocator" if worst else "",
    )
    parts = [
        Comparison(
            what=name,
            unit="bytes",
            forecast=forecast.get(name),
            measured=measured.get(name),
            note=PART_NOTES[name],
        )
        for name in COMMON_PARTS
    ]
    outside = whole_forecast.get(OUTSIDE_PART)
    context = Comparison(
        what=OUTSIDE_PART,
        unit="bytes",
        forecast=outside,
        measured=None,
        note="outside the allocator; no run can count it",
    )
    return (peak, *parts, context)


PART_NOTES = {
    "weights": "read back from live tensors",
    "optimizer": "read back from live tensors",
    "other": "gradients, activations, logits, communication, temporary: the rest of the peak",
}


def time_comparisons(sources: Sources, candidate: Candidate | None, steps: Taken) -> tuple[Comparison, ...]:
    """Step, throughput, utilisation and total time.

    Args:
        sources: the run's files.
        candidate: the forecast that ran.
        steps: taken under it.
    """
    steady, forecast = steps.steady, candidate.time if candidate else None
    seconds = _values(steady, "step_seconds")
    return (
        Comparison(
            what="step time",
            unit="seconds",
            forecast=forecast.step_seconds if forecast else None,
            measured=median(seconds) if seconds else None,
            note=steps.covers,
        ),
        Comparison(
            what="throughput",
            unit="tokens_per_second",
            forecast=forecast.tokens_per_second if forecast else None,
            measured=_rate(steady),
            note="tokens of those steps ÷ their seconds",
        ),
        Comparison(
            what="MFU",
            unit="share",
            forecast=forecast.mfu if forecast else None,
            measured=_middle(_values(steady, "mfu")),
            note="model FLOPs; see the formula below",
        ),
        Comparison(
            what="GPU utilisation",
            unit="share",
            forecast=forecast.gpu_utilization if forecast else None,
            measured=share_of_time((record, record.get("gpu_utilization")) for record in steady),
            note="share of those steps' time in which any kernel runs",
        ),
        _total_time(sources, forecast.total_seconds if forecast else None, alike=steps.all_steps),
    )


def _total_time(sources: Sources, forecast: float | None, *, alike: bool) -> Comparison:
    """The whole run, comparable only where it finished, under one layout.

    The trainer times its last start, loading included; a resumed run counts the steps of all.
    """
    in_steps, last_start = sum(_values(sources.metrics, "step_seconds")), number(sources.measured, "train_seconds")
    written, measured = format_seconds(in_steps), None
    if text(sources.outcome, "outcome") != "finished":
        note = f"not finished; {written} in recorded steps" if in_steps else "not finished"
    elif not alike:
        note = f"{written} in steps, not all with these settings"
    elif was_resumed(sources):
        note, measured = "steps of all attempts; the run was resumed", in_steps
    elif last_start is None:
        note = f"{written} in recorded steps; loading was not timed"
    else:
        note, measured = f"loading to last step; {written} in steps", last_start
    return Comparison(what="total time", unit="seconds", forecast=forecast, measured=measured, note=note)


def was_resumed(sources: Sources) -> bool:
    """Whether a later start went on with what an earlier one had done."""
    return any((whole(event, "first_step") or 1) > 1 for event in sources.events)


def _values(records: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [value for record in records if (value := as_number(record.get(key))) is not None]


def share_of_time(shares: Iterable[tuple[dict[str, Any], object]]) -> float | None:
    """The share of all steps' time that shares of single steps come to; of records that have both. None: none has.

    Args:
        shares: (record of a step, a share of its seconds).
    """
    known = [(as_number(record.get("step_seconds")), as_number(share)) for record, share in shares]
    pairs = [(seconds, share) for seconds, share in known if seconds is not None and share is not None]
    total = sum(seconds for seconds, _ in pairs)
    return sum(seconds * share for seconds, share in pairs) / total if total > 0 else None


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None


def _rate(records: Sequence[dict[str, Any]]) -> float | None:
    """Tokens per second over records that have both; None where none has."""
    pairs = [(as_number(record.get("tokens")), as_number(record.get("step_seconds"))) for record in records]
    whole_pairs = [(tokens, seconds) for tokens, seconds in pairs if tokens is not None and seconds is not None]
    total = sum(seconds for _, seconds in whole_pairs)
    return sum(tokens for tokens, _ in whole_pairs) / total if total > 0 else None
