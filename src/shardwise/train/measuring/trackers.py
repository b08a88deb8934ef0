"""Experiment trackers. One that fails is dropped and never stops training."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory

#: How a tracker may fail; some call exit where a login is missing.
FAILURES = (Exception, SystemExit)


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """An open tracker: what records figures of a step, and what closes it."""

    record: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


def _tensorboard(_: Job, run: RunDirectory) -> Tracker:
    """Event files in the run directory's `tensorboard/`."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.root / "tensorboard"))

    def record(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(f"train/{name}", value, step)

    return Tracker(record=record, close=writer.close)


def _wandb(job: Job, run: RunDirectory) -> Tracker:
    """Weights & Biases; project and key come from its own environment variables."""
    import wandb  # pyright: ignore[reportMissingImports]  # installed only by those who report there

    project = os.environ.get("WANDB_PROJECT", "shardwise")
    opened: Any = wandb.init(project=project, name=run.root.name, dir=str(run.root), config=job.to_json())

    def record(figures: dict[str, float], step: int) -> None:
        opened.log({f"train/{name}": value for name, value in figures.items()}, step=step)

    return Tracker(record=record, close=opened.finish)


def _mlflow(job: Job, run: RunDirectory) -> Tracker:
    """MLflow; the tracking server comes from its own environment variables."""
    import mlflow  # pyright: ignore[reportMissingImports]  # likewise

    mlflow.start_run(run_name=run.root.name)
    mlflow.log_params({"model": job.model, "method": job.method, **job.train.model_dump(mode="json")})
    return Tracker(record=lambda figures, step: mlflow.log_metrics(figures, step=step), close=mlflow.end_run)


_TRACKERS: dict[str, Callable[[Job, RunDirectory], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _said(error: BaseException) -> str:
    """Why a tracker failed."""
    if isinstance(error, SystemExit):
        return f"it called exit({error.code if error.code is not None else ''})"
    return str(error) or type(error).__name__


class Trackers:
    """All trackers of a job; empty on ranks that do not report."""

    def __init__(self, trackers: dict[str, Tracker], *, complain: Callable[[str], None]) -> None:
        self._trackers = trackers
        self._complain = complain

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """Passes figures on."""
        self._each(lambda tracker: tracker.record(figures, step))

    def close(self) -> None:
        """Closes all."""
        self._each(lambda tracker: tracker.close())

    def _each(self, action: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                action(tracker)
            except FAILURES as error:  # a tracker's network or disk may fail in any way; training must not
                self._complain(f"{name} failed and is no longer reported to: {_said(error)}")
                del self._trackers[name]


def open_trackers(job: Job, run: RunDirectory, *, complain: Callable[[str], None]) -> Trackers:
    """Opens the trackers of `report_to`; one that cannot be opened is left out with a warning."""
    opened: dict[str, Tracker] = {}
    for name in job.train.report_to:
        try:
            opened[name] = _TRACKERS[name](job, run)
        except FAILURES as error:  # as in Trackers: nothing a tracker does may stop training
            complain(f"{name} cannot be opened and is not reported to: {_said(error)}")
    return Trackers(opened, complain=complain)
