"""Forecast beside measurement: memory by part, time, throughput, utilisation, causes of gaps."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from shardwise.report.contents import COMMON_PARTS, OTHER_PARTS, OUTSIDE_PART, Comparison, MemoryReport, RankReport
from shardwise.report.fields import as_number, as_whole, items, number, numbers, section, sections, text, whole
from shardwise.report.run_files import Record, Sources, Taken
from shardwise.report.written import Unit
from shardwise.spec.plan.forecast import Candidate, RankMemory, SeenMemory
from shardwise.spec.run import EVALUATION, FORWARD_BACKWARD, LOADING, OPTIMIZER, PHASES, SAVING
from shardwise.units import format_bytes, format_seconds

#: A smaller gap between the forecast peak and the measured one, in percent, is not explained.
NOTICEABLE_PERCENT = 5.0

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
    """Every rank of the plan or the measurement, in order; `steps` were taken with the candidate's
    settings, and `seen` is what is forecast for the rows of those that were measured."""
    forecast = candidate.memory if candidate else None
    by_rank = {rank: memory for memory in (forecast.ranks if forecast else ()) for rank in memory.ranks}
    entries = {rank: one for one in sections(sources.measured, "ranks") if (rank := whole(one, "rank")) is not None}
    measured = entries or _peaks_by_rank(steps.records())
    busy = _utilization_by_rank(steps.steady)
    ranks = tuple(
        _rank_report(rank, by_rank.get(rank), measured.get(rank, {}), seen, busy.get(rank))
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


def _rank_report(
    rank: int, forecast: RankMemory | None, measured: dict[str, Any], seen: SeenMemory | None, busy: float | None
) -> RankReport:
    """`measured`: an entry of measured.json, or the peak alone; `seen` as for `memory_report`."""
    parts = {name: size for name in COMMON_PARTS if (size := whole(measured, name)) is not None}
    phases = section(measured, "phases")
    found_phases = {phase: size for phase in PHASES if (size := whole(phases, phase)) is not None}
    forecast_phases = None if seen is None else seen.phases.get(rank)
    peak, peak_seen = whole(measured, "peak_memory_bytes"), None if seen is None else seen.peaks.get(rank)
    forecast_peak = forecast.peak_bytes - forecast.parts.get(OUTSIDE_PART, 0) if forecast else None
    ours = {"peak": forecast_peak, "peak_seen": peak_seen, **(common_parts(forecast.parts) if forecast else {})}
    theirs = {"peak": peak, "peak_seen": peak, **parts, **found_phases}
    return RankReport(
        rank=rank,
        forecast_parts=forecast.parts if forecast else None,
        measured_parts=parts or None,
        forecast_peak_bytes=forecast_peak,
        measured_peak_bytes=peak,
        gpu_utilization=busy,
        forecast_seen_bytes=peak_seen,
        forecast_phases=forecast_phases,
        measured_phases=found_phases or None,
        ratios={
            name: round(size / found, 4)
            for name, size in {**ours, **(forecast_phases or {})}.items()
            if size is not None and (found := theirs.get(name))
        },
    )


def _peaks_by_rank(records: Sequence[Record]) -> dict[int, dict[str, Any]]:
    peaks: dict[int, int] = {}
    for record in records:
        for rank, peak in enumerate(items(record, "peak_memory_bytes")):
            if (size := as_whole(peak)) is not None:
                peaks[rank] = max(size, peaks.get(rank, 0))
    return {rank: {"peak_memory_bytes": peak} for rank, peak in peaks.items()}


def _utilization_by_rank(records: Sequence[Record]) -> dict[int, float]:
    """Share of the steps' time by rank, where it was measured."""
    shares: dict[int, list[tuple[Record, object]]] = {}
    for record in records:
        for rank, share in enumerate(items(record, "gpu_utilization_by_rank")):
            shares.setdefault(rank, []).append((record, share))
    return {rank: mean for rank, found in shares.items() if (mean := share_of_time(found)) is not None}


def memory_comparisons(memory: MemoryReport) -> tuple[Comparison, ...]:
    """Peak and parts of the worst rank, the peak of rows seen, and those of phases."""
    worst = memory.worst or RankReport(rank=0)
    forecast, measured = worst.forecast_parts or {}, worst.measured_parts or {}
    common = common_parts(forecast) if forecast else {}
    phases, peak = worst.forecast_phases or {}, worst.measured_peak_bytes
    inside = f"rank {worst.rank}, inside the allocator" if memory.worst else ""
    rows: list[tuple[str, int | None, int | None, str]] = [("peak memory", worst.forecast_peak_bytes, peak, inside)]
    if worst.forecast_seen_bytes not in (None, worst.forecast_peak_bytes):
        while_measured = f"for {memory.rows_seen}, the longest while it was measured"
        rows.append(("peak of rows seen", worst.forecast_seen_bytes, peak, while_measured))
    rows += [(name, common.get(name), measured.get(name), note) for name, note in PART_NOTES.items()]
    uncounted = "outside the allocator, which does not count it"
    rows.append((OUTSIDE_PART, forecast.get(OUTSIDE_PART), None, uncounted))
    at_once = "the most at one instant of it, forecast for the rows seen"
    measured_phases = (worst.measured_phases or {}).items()
    rows += [(PHASE_NAMES[phase], phases.get(phase), size, at_once) for phase, size in measured_phases]
    return tuple(
        Comparison(what=what, unit="bytes", forecast=ours, measured=theirs, note=note)
        for what, ours, theirs, note in rows
    )


def time_comparisons(sources: Sources, candidate: Candidate | None, steps: Taken) -> tuple[Comparison, ...]:
    """Step time, throughput, utilisation and total time; arguments as for `memory_report`."""
    steady, forecast = steps.steady, candidate.time if candidate else None
    busy, mfu = (share_of_time((record, record.get(key)) for record in steady) for key in ("gpu_utilization", "mfu"))
    seconds = median(found) if (found := numbers(steady, "step_seconds")) else None
    of_those = "tokens of those steps ÷ their seconds"
    rows: tuple[tuple[str, Unit, str, float | None, str], ...] = (
        ("step time", "seconds", "step_seconds", seconds, steps.covers),
        ("throughput", "tokens_per_second", "tokens_per_second", _rate(steady), of_those),
        ("MFU", "share", "mfu", mfu, "model FLOPs of that throughput; see the formula below"),
        ("GPU utilisation", "share", "gpu_utilization", busy, "share of those steps' time in which any kernel runs"),
    )
    compared = [
        Comparison(what=what, unit=unit, forecast=getattr(forecast, key, None), measured=measured, note=note)
        for what, unit, key, measured, note in rows
    ]
    return (*compared, _total_time(sources, forecast.total_seconds if forecast else None, alike=steps.all_steps))


def _total_time(sources: Sources, forecast: float | None, *, alike: bool) -> Comparison:
    """The whole run, if it finished with one layout; the steps of all starts if it was resumed."""
    in_steps, last_start = sum(numbers(sources.metrics, "step_seconds")), number(sources.measured, "train_seconds")
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


def share_of_time(shares: Iterable[tuple[Record, object]]) -> float | None:
    """The mean of (step record, share of its time), weighted by steps' seconds; None if unknown."""
    known = [(number(record, "step_seconds"), as_number(share)) for record, share in shares]
    return _ratio((seconds * share, seconds) for seconds, share in known if seconds is not None and share is not None)


def _rate(records: Sequence[Record]) -> float | None:
    known = [(number(record, "tokens"), number(record, "step_seconds")) for record in records]
    return _ratio((tokens, seconds) for tokens, seconds in known if tokens is not None and seconds is not None)


def _ratio(pairs: Iterable[tuple[float, float]]) -> float | None:
    known = [*pairs]
    total = sum(second for _, second in known)
    return sum(first for first, _ in known) / total if total > 0 else None


def gap_notes(memory: MemoryReport, candidate: Candidate | None) -> Iterator[str]:
    """The sentence, where the peak of the worst rank is more than `NOTICEABLE_PERCENT` off."""
    worst = memory.worst
    if worst is None or candidate is None:
        return
    peak = _off(worst.forecast_peak_bytes, worst.measured_peak_bytes)
    if peak.error_percent is None or abs(peak.error_percent) <= NOTICEABLE_PERCENT:
        return
    seen = _off(worst.forecast_seen_bytes, worst.measured_peak_bytes)
    off, causes = peak, list[str]()
    if seen.forecast not in (None, peak.forecast):
        off = seen
        causes.append(
            f"for {memory.rows_seen}, the longest while it was measured, "
            f"{format_bytes(worst.forecast_seen_bytes or 0)} are forecast ({seen.error_written})"
        )
    if off.error_percent is not None and abs(off.error_percent) > NOTICEABLE_PERCENT:
        missing = (off.measured or 0) - (off.forecast or 0)
        causes += _rest(worst, candidate, missing=missing)
        if missing > 0 and memory.kind == "cpu_allocation_events" and len(memory.ranks) > 1:
            unseen = "a tensor that gloo's thread is the last to let go of is not seen to be freed"
            causes.append(f"{unseen}: on a busy machine more is measured than was held")
    yield f"the forecast peak is {peak.error_written} off: {'; '.join(causes)}"


def _rest(worst: RankReport, candidate: Candidate, *, missing: float) -> Iterator[str]:
    """Where the peak differs, and what of the execution is known to be forecast less surely."""
    forecast, measured = common_parts(worst.forecast_parts or {}), worst.measured_parts or {}
    held = sum(measured.get(part, 0) - forecast[part] for part in ("weights", "optimizer"))
    where = "weights and optimizer states" if abs(held) > abs(missing) / 2 else "what comes and goes in a step"
    yield f"{format_bytes(round(abs(missing)))} {'more' if missing > 0 else 'less'} were measured, in {where}"
    if candidate.execution.compile:
        yield "blocks are compiled, and what a compiler keeps is not counted operator by operator"


def _off(forecast: int | None, measured: int | None) -> Comparison:
    return Comparison(what="", unit="bytes", forecast=forecast, measured=measured)
