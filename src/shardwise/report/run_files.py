"""Reads the files of a run directory; a missing or damaged file is a gap, with a reason. The
forecast does not apply to a run that was resumed with other settings: its starts say with which."""

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from shardwise.errors import InputError, RunDirectoryError
from shardwise.report.contents import Gap, RunOutcome, State
from shardwise.report.fields import number, section, text, whole, wholes
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.result import result_fault
from shardwise.spec.run import RunDirectory, read_json, read_lines
from shardwise.units import GIB

#: The first steps of a start allocate, compile and fill caches; they are left out of medians.
WARM_UP_STEPS = 3

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RanJob:
    """What was run, as far as it is known; another version's execution may have other keys."""

    execution: dict[str, Any] | None
    hardware: str | None

    def may_be(self, other: Self) -> bool:
        """Whether everything that both know is equal."""
        return _agree(self.execution, other.execution) and _agree(self.hardware, other.hardware)


def noted(data: dict[str, Any] | None) -> RanJob:
    """What a line of starts.jsonl, or measured.json, says."""
    return RanJob(execution=section(data, "execution"), hardware=text(data, "hardware"))


def planned(plan: Plan | None) -> RanJob:
    """What a plan chose."""
    execution = plan.best.execution.to_json() if plan and plan.best else None
    return RanJob(execution=execution, hardware=text(plan.hardware, "name") if plan else None)


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return all(_agree(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return one is None or other is None or one == other


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run; its records go from its first step up to the next start's."""

    first_step: int
    ran: RanJob
    world_size: int | None
    peak_flops: float | None


def starts_of(lines: Iterable[dict[str, Any]]) -> tuple[Start, ...]:
    """The lines that have a first step, in order."""
    return tuple(
        Start(
            first_step=first, ran=noted(one), world_size=whole(one, "world_size"), peak_flops=number(one, "peak_flops")
        )
        for one in lines
        if (first := whole(one, "first_step")) is not None
    )


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Records of the steps taken with a plan's settings, by start, and whether these are all."""

    spans: tuple[tuple[Record, ...], ...]
    all_steps: bool

    def records(self, *, after: int = 0) -> list[Record]:
        """In order, without the first `after` ones of each start."""
        return [record for span in self.spans for record in span[after:]]

    @property
    def steady(self) -> list[Record]:
        """Those after the warm-up of their start; all of them where there are no others."""
        return self.records(after=WARM_UP_STEPS) or self.records()

    @property
    def covers(self) -> str:
        """What the steady steps are, in words."""
        steady = self.steady
        if not steady:
            return "" if self.all_steps else "no step was taken with these settings"
        where = "" if self.all_steps else " with these settings"
        first, last = steady[0]["step"], steady[-1]["step"]
        if len(steady) == last - first + 1:
            return f"median of steps {first:,} to {last:,}{where}"
        is_warm = self.records(after=WARM_UP_STEPS)
        how = "after the warm-up of each start" if is_warm else "which are all warm-up"
        return f"median of {len(steady):,} steps{where} from {first:,} to {last:,}, {how}"


def taken(records: Sequence[Record], starts: Sequence[Start], plan: RanJob) -> Taken:
    """The steps that were taken with a plan's settings; all of them where no start was recorded."""

    def start_of(record: Record) -> Start | None:
        return next((start for start in reversed(starts) if start.first_step <= record["step"]), None)

    each = [(start, tuple(own)) for start, own in groupby(records, key=start_of)]
    spans = tuple(own for start, own in each if not starts or (start is not None and start.ran.may_be(plan)))
    return Taken(spans=spans, all_steps=len(spans) == len(each))


T = TypeVar("T")

#: Any of these makes a folder a run directory.
SIGNS = ("plan.json", "resolved.yaml", "metrics.jsonl")

#: Files of a changed or copied result are hashed up to this size, so that a report stays fast.
HASHED_AFTER_COPY = 2 * GIB

#: What the report lacks without a file.
LOST = {
    "plan.json": "there is no forecast to compare with",
    "resolved.yaml": "the job's settings are not shown",
    "metrics.jsonl": "no optimizer step is recorded",
    "measured.json": "memory by part and total time were not measured; a start that takes a step writes it at its end",
    "data.json": "rows and tokens were not counted",
    "environment.json": "versions and devices are not known",
}

_SIGNALS = {int(one): one.name for one in signal.Signals}
ENDINGS: dict[str | None, State] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files' content; None or empty where a file is missing, with its gap. `metrics`: one
    record per optimizer step, in order, each with an integer `step`."""

    plan: Plan | None
    job: Job | None
    metrics: list[dict[str, Any]]
    measured: dict[str, Any] | None
    data: dict[str, Any] | None
    environment: dict[str, Any] | None
    outcome: dict[str, Any] | None
    events: list[dict[str, Any]]
    starts: tuple[Start, ...]
    failures: list[dict[str, Any]]
    gaps: tuple[Gap, ...]


def read_sources(run: RunDirectory) -> Sources:
    """Reads all files. Raises RunDirectoryError: the folder is missing or not a run directory."""
    _refuse_other_folders(run)
    gaps: list[Gap] = []
    metrics = _attempt(gaps, run.metrics, lambda: _records(gaps, run)) or []
    events = _attempt(gaps, run.events, lambda: list(read_lines(run.events))) or []
    starts = _starts(gaps, run)
    if not run.logs.is_dir():
        lost = "how the run ended, its phases and what its ranks wrote are not known"
        gaps.append(Gap(file=f"{run.logs.name}/", reason=f"is missing; {lost}"))
    failures = [read for path in sorted(run.logs.glob("rank_*.failure.json")) if (read := _json([], path))]
    outcome = _json([], run.outcome)
    if text(outcome, "outcome") == "finished" and (fault := _fault(run)):
        gaps.append(Gap(file=f"{run.final.name}/", reason=fault))
    return Sources(
        plan=_attempt(gaps, run.plan, lambda: read_plan(run.plan)),
        job=_attempt(gaps, run.resolved, lambda: read_job(run.resolved)),
        metrics=metrics,
        measured=_json(gaps, run.measured),
        data=_json(gaps, run.data),
        environment=_json(gaps, run.environment),
        outcome=outcome,
        events=events,
        starts=starts,
        failures=sorted(failures, key=lambda record: number(record, "time") or 0.0),
        gaps=tuple(gaps),
    )


def _fault(run: RunDirectory) -> str | None:
    if not run.final.is_dir():
        return "is missing; the run had finished, and its result was there"
    found = result_fault(run.final, most_bytes=HASHED_AFTER_COPY)
    return found and f"{found}; the run had finished, and its result is damaged"


def _refuse_other_folders(run: RunDirectory) -> None:
    if not run.root.is_dir():
        found = "is a file" if run.root.exists() else "there is no such folder"
        raise RunDirectoryError(f"{run.root}: {found}; name the output_dir of a run, for example runs/first")
    if not any((run.root / sign).exists() for sign in SIGNS):
        raise RunDirectoryError(
            f"{run.root}: is not a run directory: it holds none of {', '.join(SIGNS)}; "
            "name the output_dir of a run that `shardwise train` started"
        )


def _attempt(gaps: list[Gap], path: Path, read: Callable[[], T | None]) -> T | None:
    """The file's content; where it cannot be read, None and a gap."""
    lost, reason = LOST.get(path.name), "is missing"
    try:
        if path.is_file():
            if (found := read()) is not None:
                return found
            reason = "is damaged: it is not the text its writer writes"
    except InputError as error:
        reason = str(error)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        reason = "is damaged: it is not the text its writer writes"
    if lost:
        gaps.append(Gap(file=path.name, reason=f"{reason}; {lost}"))
    return None


def _json(gaps: list[Gap], path: Path) -> dict[str, Any] | None:
    return _attempt(gaps, path, lambda: read_json(path))


def _records(gaps: list[Gap], run: RunDirectory) -> list[dict[str, Any]]:
    """Records with an integer step, in order; the last one of each step. Other lines are a gap."""
    records = [record for record in read_lines(run.metrics) if whole(record, "step") is not None]
    with run.metrics.open("rb") as file:
        lines = [line for line in file if line.strip()]
    if unread := len(lines) - len(records):
        lost = "the figures of their steps are not shown" if records else LOST[run.metrics.name]
        cut = "" if lines[-1].endswith(b"\n") else " (the last is cut off)"
        gaps.append(
            Gap(file=run.metrics.name, reason=f"{unread} of its {len(lines)} lines cannot be read{cut}; {lost}")
        )
    steps = {record["step"]: record for record in records}
    return [steps[step] for step in sorted(steps)]


def _starts(gaps: list[Gap], run: RunDirectory) -> tuple[Start, ...]:
    """All starts, or none where a line cannot be read: its steps would count as another's."""
    if not run.starts.is_file():
        return ()
    found = _attempt([], run.starts, lambda: list(read_lines(run.starts)))
    starts = starts_of(found or [])
    if found is None or len(starts) < sum(1 for line in run.starts.read_bytes().splitlines() if line.strip()):
        lost = "steps of several layouts, if there are, are not told apart"
        gaps.append(Gap(file=f"logs/{run.starts.name}", reason=f"cannot be read whole; {lost}"))
        return ()
    return starts


def read_outcome(sources: Sources) -> RunOutcome:
    """The outcome of the last start."""
    step = sources.metrics[-1]["step"] if sources.metrics else 0
    totals = wholes(sources.events, "total_steps")
    failure = _failure_of_last_attempt(sources)
    at = whole(sources.outcome, "step")
    written = None if at is not None and at < step else sources.outcome  # a resumed run has recorded later steps
    return RunOutcome(
        state="failed" if failure else ENDINGS.get(text(written, "outcome"), "unfinished"),
        step=step,
        total_steps=totals[-1] if totals else None,
        phase=text(sources.events[-1], "phase") if sources.events else None,
        signal=_SIGNALS.get(by, str(by)) if (by := whole(written, "signal")) else None,
        failure=_failure_sentence(failure) if failure else None,
    )


def _failure_of_last_attempt(sources: Sources) -> dict[str, Any] | None:
    starts = (number(event, "time") or 0.0 for event in sources.events if text(event, "phase") == "loading")
    last_start = max(starts, default=0.0)
    return next((failure for failure in sources.failures if (number(failure, "time") or 0.0) >= last_start), None)


def _failure_sentence(failure: dict[str, Any]) -> str:
    where = ", ".join(f"{key} {failure[key]}" for key in ("rank", "phase") if failure.get(key) is not None)
    at = f" ({failure['file']}:{failure.get('line', '?')})" if failure.get("file") else ""
    what = ": ".join(str(failure[key]) for key in ("error", "message") if failure.get(key))
    return f"{where or 'a rank'}: {what or 'no cause was recorded'}{at}"
