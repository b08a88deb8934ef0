"""`report`, with what is forecast of the rows that a run has seen."""

from dataclasses import replace
from pathlib import Path

from shardwise.api.plans.shapes import find_model
from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.run_folder import known_data
from shardwise.plan import forecast_seen
from shardwise.report.collect import collect, write_report
from shardwise.report.contents import Gap, Report
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import SeenMemory
from shardwise.spec.request import restricted_to
from shardwise.spec.run import RunDirectory, read_json, revision_of


def report(run_dir: str | Path) -> Report:
    """Forecast beside measurement of a run; writes report.json and report.html, and a gap says
    where they cannot be written."""
    run = RunDirectory(Path(run_dir))
    collected = collect(run, seen=memory_seen(run))
    try:
        write_report(collected, run)
    except RunDirectoryError as error:
        return replace(collected, gaps=(*collected.gaps, Gap(file=run.report_html.name, reason=str(error))))
    return collected


def memory_seen(run: RunDirectory) -> SeenMemory | None:
    """The forecast for the longest rows of the steps that were measured; None: not known."""
    measured, counted = read_json(run.measured) or {}, known_data(run)[1]
    try:
        first, later = map(int, measured.get("rows_seen") or ())
        trained = tuple(map(int, measured.get("trained_seen") or ()))
        plan = read_plan(run.plan)
        if plan.best is None or first < 1:
            return None
        execution = plan.best.execution
        job = job_from_data(restricted_to(plan.job, execution))
        model = find_model(job.model, offline=True, revision=revision_of(run, job.model), rope=job.rope_scaling)
        return forecast_seen(
            job,
            model=model,
            cluster=Cluster.from_json(plan.hardware).part(execution.layout.world_size),
            execution=execution,
            first=first,
            later=later,
            document=counted and counted.document,
            trained=(trained[0], trained[1]) if any(trained) else None,
        )
    except (InputError, KeyError, TypeError, ValueError, IndexError):  # files are no longer there, or were edited
        return None
