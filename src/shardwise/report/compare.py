"""Forecast beside measurement: memory part by part, time, throughput and utilisation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from shardwise.report.contents import COMMON_PARTS, OTHER_PARTS, OUTSIDE_PART, Comparison, MemoryReport, RankReport
from shardwise.report.fields import as_number, as_whole, items, number, section, sections, text, whole
from shardwise.report.sources import Sources
from shardwise.report.starts import Record, Taken
from shardwise.report.written import Unit
from shardwise.spec.plan.forecast import Candidate, RankMemory, SeenMemory
from shardwise.spec.run import EVALUATION, FORWARD_BACKWARD, LOADING, OPTIMIZER, PHASES, SAVING
from shardwise.units import format_seconds

PART_NOTES = {
    "weights": "read from live tensors",
    "optimizer": "read from live tensors",
    "other": "gradients, activations, logits, communication, temporary: the rest of the peak",
}


#: `spec.run.PHASES`, as a table names them.
PHASE_NAMES = {
    LOADING: "in loading",
    FORWARD_BACKWARD: "in forward and backward",
    OPTIMIZER: "in the optimizer step",
    EVALUATION: "in evaluation",
    SAVING: "in saving",
}


def common_parts(parts: dict[str, int]) -> dict[str, int]:
    """A forecast's parts summed to `COMMON_PARTS`."""
    other = sum(parts.get(name, 0) for name in OTHER_PARTS)
    return {**{name: parts.get(name, 0) for name in COMMON_PARTS[:2]}, "other": other}


def memory_report(
    sources: Sources, candidate: Candidate | None, steps: Taken, *, seen: SeenMemory | None = None
) -> MemoryReport:
    """Every rank of the plan or the measurement, in order; `steps` were taken with the candidate's settings, and `seen`
    is what is forecast for the rows of those that were measured."""
    forecast = candidate.memory if candidate else None
    by_rank = {rank: memory for memory in (forecast.ranks if forecast else ()) for rank in memory.ranks}
    measured, busy = _measured_ranks(sources, steps.records), utilization_by_rank(steps.steady)
    phases = _measured_phases(sources)
    ranks = tuple(
        _seeing(_rank_report(rank, by_rank.get(rank), measured.get(rank), busy.get(rank)), seen, phases.get(rank))
        for rank in sorted(by_rank.keys() | measured.keys())
    )
    peaks = [(rank.measured_peak_bytes or 0, rank.forecast_peak_bytes or 0, -rank.rank) for rank in ranks]
    return MemoryReport(
        kind=text(sources.measured, "kind"),
        capacity_bytes=getattr(forecast, "capacity_bytes", None),
        peak_low_bytes=getattr(forecast, "peak_low_bytes", None),
        peak_high_bytes=getattr(forecast, "peak_high_bytes", None),
        peak_instant=getattr(forecast, "peak_instant", None),
        worst_rank=ranks[peaks.index(max(peaks))].rank if ranks else None,
        ranks=ranks,
        rows_seen=None if seen is None else seen.rows,
    )


def _seeing(rank: RankReport, seen: SeenMemory | None, phases: dict[str, int] | None) -> RankReport:
    """With the peaks of its phases, and what is forecast for the rows that were seen."""
    forecast, peaks = ({}, {}) if seen is None else (seen.phases, seen.peaks)
    of = rank.rank
    full = replace(
        rank, forecast_seen_bytes=peaks.get(of), forecast_phases=forecast.get(of), measured_phases=phases or None
    )
    return replace(full, ratios=_ratios(full))


def _ratios(rank: RankReport) -> dict[str, float]:
    """Forecast over measured, where both are known and something was measured."""
    peak = rank.measured_peak_bytes
    parts = common_parts(rank.forecast_parts) if rank.forecast_parts else {}
    forecast = {"peak": rank.forecast_peak_bytes, "peak_seen": rank.forecast_seen_bytes, **parts}
    measured = {"peak": peak, "peak_seen": peak, **(rank.measured_parts or {}), **(rank.measured_phases or {})}
    forecast |= rank.forecast_phases or {}
    return {
        name: round(size / found, 4)
        for name, size in forecast.items()
        if size is not None and (found := measured.get(name))
    }


def _measured_phases(sources: Sources) -> dict[int, dict[str, int]]:
    """Measured peaks by rank and phase."""
    found: dict[int, dict[str, int]] = {}
    for entry in sections(sources.measured, "ranks"):
        rank, phases = whole(entry, "rank"), section(entry, "phases") or {}
        if rank is not None:
            found[rank] = {phase: size for phase in PHASES if (size := whole(phases, phase)) is not None}
    return found


def _rank_report(
    rank: int, forecast: RankMemory | None, measured: dict[str, int] | None, busy: float | None
) -> RankReport:
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


def utilization_by_rank(records: Sequence[Record]) -> dict[int, float]:
    """Share of the steps' time by rank, where it was measured."""
    shares: dict[int, list[tuple[Record, object]]] = {}
    for record in records:
        for rank, share in enumerate(items(record, "gpu_utilization_by_rank")):
            shares.setdefault(rank, []).append((record, share))
    means = {rank: share_of_time(found) for rank, found in shares.items()}
    return {rank: share for rank, share in means.items() if share is not None}


def _measured_ranks(sources: Sources, records: Sequence[Record]) -> dict[int, dict[str, int]]:
    """Measured bytes by rank: measured.json, else the highest peaks in metrics.jsonl."""
    found: dict[int, dict[str, int]] = {}
    for entry in sections(sources.measured, "ranks"):
        rank = whole(entry, "rank")
        if rank is not None:
            found[rank] = {key: value for key in entry if (value := whole(entry, key)) is not None}
    if found:
        return found
    peaks: dict[int, int] = {}
    for record in records:
        for rank, peak in enumerate(items(record, "peak_memory_bytes")):
            if (size := as_whole(peak)) is not None:
                peaks[rank] = max(size, peaks.get(rank, 0))
    return {rank: {"peak_memory_bytes": peak} for rank, peak in peaks.items()}


def memory_comparisons(memory: MemoryReport) -> tuple[Comparison, ...]:
    """Peak and parts of the worst rank."""
    worst = memory.worst
    all_parts = (worst.forecast_parts if worst else None) or {}
    forecast = common_parts(all_parts) if all_parts else {}
    measured = (worst.measured_parts if worst else None) or {}
    peak = Comparison(
        what="peak memory",
        unit="bytes",
        forecast=worst.forecast_peak_bytes if worst else None,
        measured=worst.measured_peak_bytes if worst else None,
        note=f"rank {worst.rank}, inside the allocator" if worst else "",
    )
    parts = [
        Comparison(what=name, unit="bytes", forecast=forecast.get(name), measured=measured.get(name), note=note)
        for name, note in PART_NOTES.items()
    ]
    context = Comparison(
        what=OUTSIDE_PART,
        unit="bytes",
        forecast=all_parts.get(OUTSIDE_PART),
        measured=None,
        note="outside the allocator, which does not count it",
    )
    return (peak, *_of_rows_seen(memory, worst), *parts, context, *_phases(worst))


def _of_rows_seen(memory: MemoryReport, worst: RankReport | None) -> Iterable[Comparison]:
    """The peak, where what is forecast for the rows that were seen is something else."""
    if worst is None or worst.forecast_seen_bytes in (None, worst.forecast_peak_bytes):
        return
    yield Comparison(
        what="peak of rows seen",
        unit="bytes",
        forecast=worst.forecast_seen_bytes,
        measured=worst.measured_peak_bytes,
        note=f"for {memory.rows_seen}, the longest while it was measured",
    )


def _phases(worst: RankReport | None) -> Iterable[Comparison]:
    """Peaks of the phases that were measured."""
    forecast = (worst.forecast_phases if worst else None) or {}
    for phase, size in ((worst.measured_phases if worst else None) or {}).items():
        yield Comparison(
            what=PHASE_NAMES[phase],
            unit="bytes",
            forecast=forecast.get(phase),
            measured=size,
            note="the most at one instant of it, forecast for the rows seen",
        )


def time_comparisons(sources: Sources, candidate: Candidate | None, steps: Taken) -> tuple[Comparison, ...]:
    """Step time, throughput, utilisation and total time; arguments as for `memory_report`."""
    steady, forecast = steps.steady, candidate.time if candidate else None
    busy = share_of_time((record, record.get("gpu_utilization")) for record in steady)
    rows: tuple[tuple[str, Unit, str, float | None, str], ...] = (
        ("step time", "seconds", "step_seconds", _median(steady, "step_seconds"), steps.covers),
        (
            "throughput",
            "tokens_per_second",
            "tokens_per_second",
            _rate(steady),
            "tokens of those steps ÷ their seconds",
        ),
        ("MFU", "share", "mfu", _median(steady, "mfu"), "model FLOPs; see the formula below"),
        ("GPU utilisation", "share", "gpu_utilization", busy, "share of those steps' time in which any kernel runs"),
    )
    compared = [
        Comparison(what=what, unit=unit, forecast=getattr(forecast, key, None), measured=measured, note=note)
        for what, unit, key, measured, note in rows
    ]
    return (*compared, _total_time(sources, forecast.total_seconds if forecast else None, alike=steps.all_steps))


def _total_time(sources: Sources, forecast: float | None, *, alike: bool) -> Comparison:
    """The whole run, where it finished with one layout; the steps of all starts where it was resumed."""
    in_steps, last_start = sum(_values(sources.metrics, "step_seconds")), number(sources.measured, "train_seconds")
    written, measured = format_seconds(in_steps), None
    if text(sources.outcome, "outcome") != "finished":
        note = f"not finished; {written} in recorded steps" if in_steps else "not finished"
    elif not alike:
        note = f"{written} in steps, not all with these settings"
    elif was_resumed(sources):
        note, measured = "steps of all starts; the run was resumed", in_steps
    elif last_start is None:
        note = f"{written} in recorded steps; loading was not timed"
    else:
        note, measured = f"loading to last step; {written} in steps", last_start
    return Comparison(what="total time", unit="seconds", forecast=forecast, measured=measured, note=note)


def was_resumed(sources: Sources) -> bool:
    """Whether a start began after the first step."""
    return any((whole(event, "first_step") or 1) > 1 for event in sources.events)


def _values(records: Sequence[Record], key: str) -> list[float]:
    return [value for record in records if (value := as_number(record.get(key))) is not None]


def _median(records: Sequence[Record], key: str) -> float | None:
    values = _values(records, key)
    return median(values) if values else None


def share_of_time(shares: Iterable[tuple[Record, object]]) -> float | None:
    """The mean of (record of a step, a share of its time), weighted by the steps' seconds; None where unknown."""
    known = [(as_number(record.get("step_seconds")), as_number(share)) for record, share in shares]
    pairs = [(seconds, share) for seconds, share in known if seconds is not None and share is not None]
    total = sum(seconds for seconds, _ in pairs)
    return sum(seconds * share for seconds, share in pairs) / total if total > 0 else None


def _rate(records: Sequence[dict[str, Any]]) -> float | None:
    """Tokens per second over the records that have both."""
    pairs = [(as_number(record.get("tokens")), as_number(record.get("step_seconds"))) for record in records]
    known = [(tokens, seconds) for tokens, seconds in pairs if tokens is not None and seconds is not None]
    total = sum(seconds for _, seconds in known)
    return sum(tokens for tokens, _ in known) / total if total > 0 else None
