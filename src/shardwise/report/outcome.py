"""How the last start of a run ended: from outcome.json, the failures of the ranks and the phases of rank 0."""

from __future__ import annotations

import signal
from typing import Any

from shardwise.report.fields import number, text, whole
from shardwise.report.nouns import Outcome, State
from shardwise.report.sources import Sources


def read_outcome(sources: Sources) -> Outcome:
    """The outcome of the last start."""
    step = sources.metrics[-1]["step"] if sources.metrics else 0
    totals = [total for event in sources.events if (total := whole(event, "total_steps")) is not None]
    failure = _failure_of_last_attempt(sources)
    at = whole(sources.outcome, "step")
    written = None if at is not None and at < step else sources.outcome  # a resumed run has recorded later steps
    states: dict[str | None, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
    return Outcome(
        state="failed" if failure else states.get(text(written, "outcome"), "unfinished"),
        step=step,
        total_steps=totals[-1] if totals else None,
        phase=text(sources.events[-1], "phase") if sources.events else None,
        signal=_signal_name(written),
        failure=_failure_sentence(failure) if failure else None,
    )


def _signal_name(written: dict[str, Any] | None) -> str | None:
    number = whole(written, "signal")
    if not number:
        return text(written, "signal")
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _failure_of_last_attempt(sources: Sources) -> dict[str, Any] | None:
    """The earliest failure since the last start."""
    starts = [number(event, "time") or 0.0 for event in sources.events if text(event, "phase") == "loading"]
    last_start = max(starts, default=0.0)
    return next((failure for failure in sources.failures if (number(failure, "time") or 0.0) >= last_start), None)


def _failure_sentence(failure: dict[str, Any]) -> str:
    where = ", ".join(f"{key} {failure[key]}" for key in ("rank", "phase") if failure.get(key) is not None)
    at = f" ({failure['file']}:{failure.get('line', '?')})" if failure.get("file") else ""
    what = ": ".join(str(failure[key]) for key in ("error", "message") if failure.get(key))
    return f"{where or 'a rank'}: {what or 'no cause was recorded'}{at}"
