"""Asks the planner for the memory of what a run has seen, for its report."""

from __future__ import annotations

from shardwise.api.plans.shapes import find_model
from shardwise.errors import InputError
from shardwise.launch.run_folder import known_data
from shardwise.plan import forecast_seen
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import SeenMemory
from shardwise.spec.request import read_request
from shardwise.spec.run import RunDirectory, read_json, revision_of


def memory_seen(run: RunDirectory) -> SeenMemory | None:
    """What is forecast for the longest rows of the steps that a run has measured; None where they are not known."""
    measured, counted = read_json(run.measured) or {}, known_data(run)[1]
    try:
        first, later = map(int, measured.get("rows_seen") or ())
        trained = tuple(map(int, measured.get("trained_seen") or ()))
        plan, job = read_plan(run.plan), read_request(run.plan).job
        if plan.best is None or first < 1:
            return None
        model = find_model(job.model, offline=True, revision=revision_of(run, job.model))
        execution = plan.best.execution
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
