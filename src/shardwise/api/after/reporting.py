"""`report`, and lists of known models and GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardwise.api.after.seen import memory_seen
from shardwise.catalog import gpus, models
from shardwise.errors import RunDirectoryError
from shardwise.report.collect import collect, write_report
from shardwise.report.contents import Gap, Report
from shardwise.spec.cluster import Gpu
from shardwise.spec.run import RunDirectory


def report(run_dir: str | Path) -> Report:
    """Forecast beside measurement of a run directory; also written to report.json and report.html."""
    run = RunDirectory(Path(run_dir))
    collected = collect(run, seen=memory_seen(run))
    write_report(collected, run)
    return collected


def report_at_the_end(run: RunDirectory) -> Report:
    """Likewise of a run that has just finished, which it stays where the report cannot be written: then a gap says
    so."""
    collected = collect(run, seen=memory_seen(run))
    try:
        write_report(collected, run)
    except RunDirectoryError as error:
        return replace(collected, gaps=(*collected.gaps, Gap(file=run.report_html.name, reason=str(error))))
    return collected


def known_models() -> list[models.KnownModel]:
    """The models with a short name."""
    return [*models.known_models().values()]


def known_gpus() -> list[Gpu]:
    """The GPUs that `hardware` can name."""
    return [known.gpu for known in gpus.known_gpus().values()]
