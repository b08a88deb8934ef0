"""Experiment trackers behind one method; one that fails stops being used and never stops training."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

from shardwise.errors import InputError
from shardwise.spec.job import Job
from shardwise.spec.run import RunDirectory

#: How a tracker may fail; some call exit where a login is missing.
FAILURES = (Exception, SystemExit)


class Tracker(Protocol):
    """Something that takes the figures of a step."""

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """Takes figures by name."""
        ...

    def close(self) -> None:
        """Ends the run."""
        ...


class TensorBoard:
    """Event files under the run directory's `tensorboard/`."""

    def __init__(self, job: Job, run: RunDirectory) -> None:
        del job
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.root / "tensorboard"))

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """One scalar per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Flushes."""
        self._writer.close()


class WandB:
    """Weights & Biases; project and key come from its own environment variables."""

    def __init__(self, job: Job, run: RunDirectory) -> None:
        import wandb  # pyright: ignore[reportMissingImports]  # installed only by those who report there

        project = os.environ.get("WANDB_PROJECT", "shardwise")
        self._run: Any = wandb.init(project=project, name=run.root.name, dir=str(run.root), config=job.to_json())

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """One row."""
        self._run.log({f"train/{name}": value for name, value in figures.items()}, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class MLflow:
    """MLflow; the tracking server comes from its own environment variables."""

    def __init__(self, job: Job, run: RunDirectory) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]  # likewise

        self._mlflow: Any = mlflow
        self._mlflow.start_run(run_name=run.root.name)
        self._mlflow.log_params({"model": job.model, "method": job.method, **job.train.model_dump(mode="json")})

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """One metric per figure."""
        self._mlflow.log_metrics(figures, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._mlflow.end_run()


_TRACKERS: dict[str, Callable[[Job, RunDirectory], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def _said(error: BaseException) -> str:
    """Why a tracker failed."""
    if isinstance(error, SystemExit):
        return f"it called exit({error.code if error.code is not None else ''})"
    return str(error) or type(error).__name__


class Trackers:
    """All trackers of a job as one; empty on ranks that do not report."""

    def __init__(self, trackers: dict[str, Tracker], *, complain: Callable[[str], None]) -> None:
        self._trackers = trackers
        self._complain = complain

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """Passes figures on; drops a tracker that fails, saying so."""
        self._each(lambda tracker: tracker.record(figures, step=step))

    def close(self) -> None:
        """Ends all."""
        self._each(lambda tracker: tracker.close())

    def _each(self, action: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                action(tracker)
            except FAILURES as error:  # a tracker's network or disk may fail in any way; training must not
                self._complain(f"{name} failed and is no longer reported to: {_said(error)}")
                del self._trackers[name]


def check_trackers(job: Job) -> None:
    """Every rank finds out alike, before anything is loaded.

    Raises:
        InputError: a tracker of `report_to` is not installed.
    """
    for name in job.train.report_to:
        if find_spec(name) is None:
            package = {"mlflow": "mlflow-skinny"}.get(name, name)
            raise InputError(f"train.report_to names {name}, which is not installed; run: pip install {package}")


def open_trackers(job: Job, run: RunDirectory, *, complain: Callable[[str], None]) -> Trackers:
    """Opens the trackers of `report_to`.

    One that cannot be opened (a network or a login is missing) is left out, as one that fails later is.
    """
    opened: dict[str, Tracker] = {}
    for name in job.train.report_to:
        try:
            opened[name] = _TRACKERS[name](job, run)
        except FAILURES as error:  # as in Trackers: nothing a tracker does may stop training
            complain(f"{name} cannot be opened and is not reported to: {_said(error)}")
    return Trackers(opened, complain=complain)
