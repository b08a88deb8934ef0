"""Takes optimizer steps with one micro-batch on all ranks together, in processes of their own, and reads what they
took: a rank that runs out of memory is a trial that failed, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace

from shardwise.errors import RanOutOfMemoryError
from shardwise.launch.processes.workers import run_workers
from shardwise.launch.run_folder import write_start
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Request
from shardwise.spec.run import TRIAL_ROWS, RunDirectory, read_json, write_json

#: The second has optimizer states from its beginning.
_STEPS = 2
#: Forwards of a step: with the second, gradients are added to others. A pipeline holds activations of more, and takes
#: all that a step has.
_FORWARDS = 2


def try_batch(
    run: RunDirectory, request: Request, plan: Plan, *, kind: DeviceKind, module: str, lock: int | None
) -> int | None:
    """Takes steps of the execution that a plan chose, of rows as long as the longest of the run's data. Nothing is
    saved; what the ranks say lies in a folder among the run's logs.

    Returns the bytes of the rank that took most: allocated, on a GPU reserved; None where one had too few.
    Raises: as `run_workers` does, where something else went wrong.
    """
    if plan.best is None:
        raise ValueError("a plan that chose nothing is not tried")
    execution = plan.best.execution
    trial, rows = RunDirectory(run.logs / f"batch_{execution.micro_batch_size}"), _rows(request, execution)
    shutil.rmtree(trial.root, ignore_errors=True)
    changes: dict[str, object] = {
        "global_batch_size": rows,
        "max_steps": _STEPS,
        "warmup_ratio": 0.0,
        "warmup_steps": 0,
        "report_to": [],
    }
    job = request.job.model_copy(update={"train": request.job.train.model_copy(update=changes)})
    write_start(trial, replace(request, job=job), plan=plan)
    write_json(trial.data, {**(read_json(run.data) or {}), "eval": None, TRIAL_ROWS: rows})
    if run.model.is_file():
        shutil.copy(run.model, trial.model)
    try:
        run_workers(trial, processes=execution.layout.world_size, kind=kind, module=module, lock=lock)
    except RanOutOfMemoryError:
        return None
    ranks = (read_json(trial.measured) or {})["ranks"]
    if any(rank.get("allocation_retries") for rank in ranks):
        return None  # what the allocator had kept was given back to make room: there is none to spare
    return max(rank.get("peak_reserved_bytes", rank["peak_memory_bytes"]) for rank in ranks)


def _rows(request: Request, execution: Execution) -> int:
    """Of a step: as many as need so many forwards."""
    forwards = execution.gradient_accumulation_steps
    if execution.layout.pp == 1:
        forwards = min(forwards, _FORWARDS)
    rows = forwards * execution.micro_batch_size * execution.layout.data_world_size
    return min(rows, request.job.train.global_batch_size)
