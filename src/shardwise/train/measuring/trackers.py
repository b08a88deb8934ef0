"""Experiment trackers. One that fails is dropped and never stops training."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory


class Tracker(NamedTuple):
    """An open tracker: what records figures of a step, and what closes it."""

    record: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


def _tensorboard(_: Job, run: RunDirectory) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.root / "tensorboard"))

    def record(figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(f"train/{name}", value, step)

    return Tracker(record=record, close=writer.close)


def _wandb(job: Job, run: RunDirectory) -> Tracker:
    import wandb  # pyright: ignore[reportMissingImports]  # installed only by those who report there

    project = os.environ.get("WANDB_PROJECT", "shardwise")
    opened: Any = wandb.init(project=project, name=run.root.name, dir=str(run.root), config=job.to_json())

    def record(figures: dict[str, float], step: int) -> None:
        opened.log({f"train/{name}": value for name, value in figures.items()}, step=step)

    return Tracker(record=record, close=opened.finish)


def _mlflow(job: Job, run: RunDirectory) -> Tracker:
    import mlflow  # pyright: ignore[reportMissingImports]  # likewise

    mlflow.start_run(run_name=run.root.name)
    mlflow.log_params({"model": job.model, "method": job.method, **job.train.model_dump(mode="json")})
    return Tracker(record=lambda figures, step: mlflow.log_metrics(figures, step=step), close=mlflow.end_run)


_TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


class Trackers:
    """Those of `names` that open; others, or later failures, are left out with a warning."""

    def __init__(self, names: Iterable[str], job: Job, run: RunDirectory, *, complain: Callable[[str], None]) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._complain = complain
        for name in names:
            with self._left_out(name, "cannot be opened and is not"):
                self._trackers[name] = _TRACKERS[name](job, run)

    def record(self, figures: dict[str, float], *, step: int) -> None:
        """Passes figures on."""
        for name, tracker in list(self._trackers.items()):
            with self._left_out(name, "failed and is no longer"):
                tracker.record(figures, step)

    def close(self) -> None:
        """Closes all."""
        for name, tracker in list(self._trackers.items()):
            with self._left_out(name, "failed and is no longer"):
                tracker.close()

    @contextmanager
    def _left_out(self, name: str, how: str) -> Iterator[None]:
        """A tracker may fail in any way, some call exit; nothing it does may stop training."""
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001
            why = str(error) or type(error).__name__
            if isinstance(error, SystemExit):
                why = f"it called exit({error.code if error.code is not None else ''})"
            self._complain(f"{name} {how} reported to: {why}")
            self._trackers.pop(name, None)
