"""`report`, and lists of known models and GPUs."""

from __future__ import annotations

from pathlib import Path

from shardwise.api.seen import memory_seen
from shardwise.catalog import gpus, models
from shardwise.report.collect import collect, write_report
from shardwise.report.contents import Report
from shardwise.spec.cluster import Gpu
from shardwise.spec.run import RunDirectory


def report(run_dir: str | Path) -> Report:
    """Forecast beside measurement of a run directory; also written to report.json and report.html."""
    run = RunDirectory(Path(run_dir))
    collected = collect(run, seen=memory_seen(run))
    write_report(collected, run)
    return collected


def known_models() -> list[models.KnownModel]:
    """The models with a short name."""
    return [*models.known_models().values()]


def known_gpus() -> list[Gpu]:
    """The GPUs that `hardware` can name."""
    return [known.gpu for known in gpus.known_gpus().values()]
