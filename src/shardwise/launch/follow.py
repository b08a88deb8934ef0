"""Follows a run while it writes: phases and steps as they appear, each once."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from shardwise.spec.run import RunDirectory

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Rank 0 entered a phase; `detail` is what else the event holds."""

    name: str
    total_steps: int | None
    detail: Record


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One optimizer step, as in metrics.jsonl; None is "not recorded". `peak_memory_bytes`: the
    largest rank's; `skipped`: gradients overflowed float16 at `loss_scale`, without an update."""

    step: int
    epoch: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    eval_loss: float | None = None
    loss_scale: float | None = None
    skipped: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A sentence that the user shall read while the run goes on."""

    text: str


FollowUpdate = Phase | StepMetrics | Notice
Told = TypeVar("Told")

_FIGURES = (
    *("epoch", "loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second", "eval_loss", "loss_scale"),
)


def tell(updates: Sequence[Told], on_update: Callable[[Told], None] | None) -> None:
    """Hands on what is new to whoever wants to know."""
    for update in updates:
        if on_update is not None:
            on_update(update)


class Follower:
    """Reads what was appended since the last look; earlier content of the files is left out."""

    def __init__(self, run: RunDirectory) -> None:
        self._events = _Tail(run.events)
        self._metrics = _Tail(run.metrics)
        self._notices = _Tail(run.notices)

    def updates(self) -> list[FollowUpdate]:
        """Phases, then steps, then notices that appeared since the last call."""
        phases = [_phase(record) for record in self._events.records()]
        steps = [_step(record) for record in self._metrics.records()]
        texts = [record.get("notice") for record in self._notices.records()]
        notices = [Notice(text=text) for text in texts if isinstance(text, str)]
        return [update for update in (*phases, *steps, *notices) if update is not None]


class _Tail:
    """Whole lines appended to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.is_file() else 0

    def records(self) -> list[Record]:
        try:
            with self._path.open("rb") as file:
                # A resumed trainer may have cut off what came after its checkpoint.
                self._at = min(self._at, file.seek(0, 2))
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        found: list[Any] = []
        for line in whole.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [cast(Record, value) for value in found if isinstance(value, dict)]


def _phase(record: Record) -> Phase | None:
    name, total = record.get("phase"), record.get("total_steps")
    if not isinstance(name, str):
        return None
    detail = {key: value for key, value in record.items() if key not in ("time", "phase", "total_steps")}
    return Phase(name=name, total_steps=total if isinstance(total, int) else None, detail=detail)


def _step(record: Record) -> StepMetrics | None:
    step, peaks = record.get("step"), record.get("peak_memory_bytes")
    if not isinstance(step, int) or isinstance(step, bool):
        return None
    figures = {name: _number(record.get(name)) for name in _FIGURES}
    found = cast(list[Any], peaks) if isinstance(peaks, list) else []
    by_rank = [int(peak) for peak in found if _number(peak) is not None]
    skipped = record.get("skipped_step") is True
    return StepMetrics(step=step, peak_memory_bytes=max(by_rank, default=None), skipped=skipped, **figures)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
