"""Run directories below the served folder: found, listed and looked at; nothing is changed."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from shardwise.api.learn import pages as parts
from shardwise.errors import RunDirectoryError
from shardwise.spec.run import RunDirectory, read_json, read_lines

#: How deep run directories may lie, how many are listed, and how many events are shown.
_DEEPEST, MOST_RUNS, MOST_EVENTS = 4, 200, 40
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
#: Keys of an event that are not its details.
OWN = ("time", "phase", "notice")


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run in the list; None is "not known"."""

    name: str
    state: str
    model: str | None
    strategy: str | None
    step: int | None
    loss: float | None
    tokens_per_second: float | None
    changed: float


class Runs:
    """The runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def lines(self) -> list[RunLine]:
        """What is known of each run at a glance, the newest first."""
        found = [_line(name, path) for name, path in self._found()]
        return sorted(found, key=lambda line: line.changed, reverse=True)[:MOST_RUNS]

    def _found(self) -> Iterator[tuple[str, Path]]:
        for root, folders, _ in os.walk(self.folder):
            here = Path(root)
            name = here.relative_to(self.folder)
            is_run = parts.is_run(here)
            if is_run:
                yield name.as_posix(), here
            deep = is_run or len(name.parts) >= _DEEPEST
            folders[:] = [] if deep else [one for one in folders if not one.startswith(".") and one not in _PASSED_OVER]

    def find(self, name: str) -> Path:
        """The run of a name. Raises RunDirectoryError: none is below the folder, by no link."""
        place = None if "\0" in name or name.startswith("/") else (self.folder / name).resolve()
        if place is None or not place.is_relative_to(self.folder) or not parts.is_run(place):
            raise RunDirectoryError("there is no such run below the served folder")
        return place


def stamp(path: Path) -> str:
    """What changes whenever a run writes something that a page shows."""
    run = RunDirectory(path)
    shown = (run.metrics, run.events, run.notices, run.outcome, run.plan, run.measured, run.starts, run.data)
    sizes = [(file.stat().st_size, file.stat().st_mtime_ns) if file.is_file() else (0, 0) for file in shown]
    return f"{hash((*sizes, parts.is_running(path))) & 0xFFFFFFFFFFFFFFFF:016x}"


def _line(name: str, path: Path) -> RunLine:
    run = RunDirectory(path)
    plan, last = read_json(run.plan) or {}, _last_record(run)
    step = last.get("step")
    return RunLine(
        name=name,
        state=_state(run, step=step),
        model=_text(plan, "job", "model"),
        strategy=_text(plan, "candidates", plan.get("chosen"), "strategy"),
        step=step if isinstance(step, int) else None,
        loss=_number(last.get("loss")),
        tokens_per_second=_number(last.get("tokens_per_second")),
        changed=run.last_written,
    )


def _state(run: RunDirectory, *, step: object) -> str:
    written = read_json(run.outcome) or {}
    outcome, at = written.get("outcome"), written.get("step")
    goes_on = isinstance(step, int) and isinstance(at, int) and at < step
    if any(run.logs.glob("rank_*.failure.json")):
        return "failed"
    if outcome == "finished" and not goes_on:
        return outcome
    if parts.is_running(run.root):
        return "running"
    return outcome if outcome in ("stopped", "failed") and not goes_on else "unfinished"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _last_record(run: RunDirectory) -> dict[str, Any]:
    """The last whole line of the metrics, of which only the end is read."""
    try:
        with run.metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 64 * 1024))
            lines = file.read().rpartition(b"\n")[0].splitlines()
        found: Any = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _text(plan: Any, *keys: Any) -> str | None:
    """What stands at a place of plan.json, without reading it whole; None where no text is."""
    try:
        for key in keys:
            plan = plan[key]
    except (KeyError, IndexError, TypeError):
        return None
    return plan if isinstance(plan, str) else None


def events(path: Path) -> list[tuple[str, str]]:
    """Phases and notices, the last first: when, and what happened, as text."""
    run = RunDirectory(path)
    timed: list[tuple[float, str]] = []
    for record in (*read_lines(run.events), *read_lines(run.notices)):
        at, what = _number(record.get("time")), record.get("phase") or record.get("notice")
        if at is None or not isinstance(what, str):
            continue
        detail = [f"{key.replace('_', ' ')} {value}" for key, value in record.items() if key not in OWN]
        timed.append((at, ", ".join([what, *detail])[:400]))
    return [(_clock(at), what) for at, what in sorted(timed, reverse=True)[:MOST_EVENTS]]


def _clock(at: float) -> str:
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    except (OSError, OverflowError, ValueError):
        return "?"
