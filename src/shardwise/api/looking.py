"""`report` and `doctor`, the verbs that look at what is there and start nothing; and what the catalogue knows."""

from __future__ import annotations

from pathlib import Path

from shardwise.catalog import gpus, models
from shardwise.launch.doctor import Doctor, examine
from shardwise.report.collect import collect, write_report
from shardwise.report.nouns import Report
from shardwise.spec.cluster import Gpu
from shardwise.spec.run import RunDirectory


def report(run_dir: str | Path) -> Report:
    """Forecast beside measurement for a run directory, whole or not; also written to report.json and report.html.

    Raises:
        RunDirectoryError: the folder is no run directory.
    """
    run = RunDirectory(Path(run_dir))
    collected = collect(run)
    write_report(collected, run)
    return collected


def doctor() -> Doctor:
    """What this machine is, and what it lacks for planning and training."""
    return examine()


def known_models() -> list[models.KnownModel]:
    """The models that have a short name, which works offline."""
    return [*models.known_models().values()]


def known_gpus() -> list[Gpu]:
    """The GPUs that a job's `hardware` can name."""
    return [known.gpu for known in gpus.known_gpus().values()]
