"""What explains a gap between the forecast peak of memory and the measured one, as a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.report.compare import common_parts
from shardwise.report.contents import Comparison, MemoryReport, RankReport
from shardwise.spec.plan.forecast import Candidate
from shardwise.units import format_bytes

#: A smaller gap, in percent, is not explained.
NOTICEABLE_PERCENT = 5.0


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
    """Where it is that the peak differs, and what of the execution is known to be forecast less surely."""
    forecast, measured = common_parts(worst.forecast_parts or {}), worst.measured_parts or {}
    held = sum(measured.get(part, 0) - forecast[part] for part in ("weights", "optimizer"))
    where = "weights and optimizer states" if abs(held) > abs(missing) / 2 else "what comes and goes in a step"
    yield f"{format_bytes(round(abs(missing)))} {'more' if missing > 0 else 'less'} were measured, in {where}"
    if candidate.execution.compile:
        yield "blocks are compiled, and what a compiler keeps is not counted operator by operator"


def _off(forecast: int | None, measured: int | None) -> Comparison:
    return Comparison(what="", unit="bytes", forecast=forecast, measured=measured)
