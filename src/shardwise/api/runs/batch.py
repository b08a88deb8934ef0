"""`train --find-batch`: tries real steps up from the forecast micro-batch; keeps the largest."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from shardwise.api.plans.planning import Planning
from shardwise.errors import DoesNotFitError, InputError, RanOutOfMemoryError, StoppedError
from shardwise.launch.follow import Phase, tell
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.workers import run_workers
from shardwise.launch.run_folder import known_data, write_start
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.data_facts import Known
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate, Plan
from shardwise.spec.plan.found import BatchTrial, FoundBatch
from shardwise.spec.request import Request, restricted_to
from shardwise.spec.run import TRIAL_ROWS, RunDirectory, read_json, write_json


def check_open(request: Request) -> None:
    """Raises InputError: the job states the micro-batch that is to be found."""
    stated = request.job.train.micro_batch_size
    if stated != "auto":
        message = (
            f"micro_batch_size is {stated}, and --find-batch finds it; leave one of them out, or add "
            "--set train.micro_batch_size=auto"
        )
        raise InputError.at(request.where("train", "micro_batch_size"), message)


def find_batch(
    planning: Planning,
    chosen: Plan,
    *,
    run: RunDirectory,
    lock: int | None,
    on_update: Callable[[Phase], None] | None,
) -> Plan:
    """The plan with the largest micro-batch with which all ranks together take steps of the longest
    rows within their memory; the rest of its execution stays. The data is prepared. Raises
    DoesNotFitError: not even one fits; StoppedError; WorkerFailedError, InputError: a trial failed
    of something else than memory."""
    assert chosen.best is not None  # noqa: S101
    request, cluster = planning.request, planning.cluster
    first, capacity = chosen.best.execution, chosen.best.memory.capacity_bytes
    sizes = sizes_beside(first, global_batch_size=request.job.train.global_batch_size)
    planning = replace(planning, cluster=cluster.part(first.layout.world_size))
    plans: dict[int, Plan] = {}
    tried: list[BatchTrial] = []

    def fits(size: int) -> bool:
        if requests.first is not None:
            raise StoppedError("stopped between two trials of a micro-batch", exit_code=128 + requests.first)
        tell([Phase(name=f"trying micro-batch {size}", total_steps=None, detail={})], on_update)
        candidate = _forecast(planning, first, size, known=known_data(run))
        plans[size] = _choosing(chosen, candidate)
        took = try_batch(run, request, plans[size], kind=cluster.gpu.kind, lock=lock)
        tried.append(_trial(candidate, took, kind=cluster.gpu.kind))
        return tried[-1].fits

    with StopRequests() as requests:
        best = largest(sizes, first.micro_batch_size, fits)
    found = FoundBatch(capacity_bytes=capacity, share=sizes[-1], tried=tuple(tried))
    if best is None:
        raise DoesNotFitError(f"{found.sentence}; the logs of these trials are in {run.logs}")
    first_of, *others = plans[best].candidates
    said = replace(first_of, reasons=(found.sentence, *first_of.reasons))  # before the others
    return replace(plans[best], found_batch=found, candidates=(said, *others))


def sizes_beside(first: Execution, *, global_batch_size: int) -> tuple[int, ...]:
    """Micro-batches, growing: divisors of a rank's share of a batch, and that of an execution."""
    share = -(-global_batch_size // first.layout.data_world_size)
    return tuple(sorted({size for size in range(1, share + 1) if share % size == 0} | {first.micro_batch_size}))


def largest(sizes: Sequence[int], first: int, fits: Callable[[int], bool]) -> int | None:
    """The largest of growing sizes that fits; None where none does. From the first on they are
    doubled until one does not fit, or halved until one does; then bisected."""
    low, high, index = -1, len(sizes), sizes.index(first)
    while high - low > 1:
        if fits(sizes[index]):
            low = index
        else:
            high = index
        if high == len(sizes):
            index = max(low + 1, sum(size <= 2 * sizes[low] for size in sizes) - 1)
        elif low < 0:
            index = max(0, sum(size <= sizes[high] // 2 for size in sizes) - 1)
        else:
            index = (low + high) // 2
    return None if low < 0 else sizes[low]


def _forecast(planning: Planning, first: Execution, size: int, *, known: Known) -> Candidate:
    request = planning.request
    job = job_from_data(restricted_to(request.job.to_json(), replace(first, micro_batch_size=size)))
    made = replace(planning, request=replace(request, job=job)).plan(known)
    found = next((one for one in made.candidates if one.execution.micro_batch_size == size), None)
    if found is None:
        raise DoesNotFitError("\n".join([f"a micro-batch of {size} cannot be planned", *made.advice]))
    return found


def _choosing(chosen: Plan, candidate: Candidate) -> Plan:
    """A plan whose choice gives way to another candidate, which is taken to fit."""
    others = (one for one in chosen.candidates if one is not chosen.best)
    reasons = candidate.reasons if candidate.fits else ()
    return replace(chosen, candidates=(replace(candidate, fits=True, reasons=reasons), *others), chosen=0)


def _trial(candidate: Candidate, took: int | None, *, kind: str) -> BatchTrial:
    """What came of a trial, in bytes that are comparable with the capacity."""
    memory = candidate.memory
    context = max(rank.parts.get("context", 0) for rank in memory.ranks)
    peak = None if took is None else took + context
    return BatchTrial(
        micro_batch_size=candidate.execution.micro_batch_size,
        fits=peak is not None and peak <= memory.capacity_bytes,
        peak_bytes=peak,
        forecast_bytes=memory.peak_bytes if kind == "cpu" else memory.peak_reserved_bytes,
    )


#: The second has optimizer states from its beginning.
_STEPS = 2
#: Forwards of a step: with the second, gradients are added to others. A pipeline holds activations
#: of more, and takes all that a step has.
_FORWARDS = 2


def try_batch(run: RunDirectory, request: Request, plan: Plan, *, kind: DeviceKind, lock: int | None) -> int | None:
    """Takes steps of what a plan chose, of rows as long as the longest; nothing is saved but what
    the ranks say, among the run's logs. Returns the bytes of the rank that took most, on a GPU
    reserved; None where one had too few. Raises as `run_workers` does."""
    assert plan.best is not None  # noqa: S101
    execution = plan.best.execution
    trial, rows = RunDirectory(run.logs / f"batch_{execution.micro_batch_size}"), _rows(request, execution)
    shutil.rmtree(trial.root, ignore_errors=True)
    changes: dict[str, object] = {"global_batch_size": rows, "max_steps": _STEPS, "report_to": []}
    changes |= {"warmup_ratio": 0.0, "warmup_steps": 0}
    job = request.job.model_copy(update={"train": request.job.train.model_copy(update=changes)})
    write_start(trial, replace(request, job=job), plan=plan)
    write_json(trial.data, {**(read_json(run.data) or {}), "eval": None, TRIAL_ROWS: rows})
    if run.model.is_file():
        shutil.copy(run.model, trial.model)
    try:
        run_workers(trial, processes=execution.layout.world_size, kind=kind, lock=lock)
    except RanOutOfMemoryError:
        return None
    ranks = (read_json(trial.measured) or {})["ranks"]
    if any(rank.get("allocation_retries") for rank in ranks):
        return None  # what the allocator had kept was given back to make room: there is none to spare
    return max(rank.get("peak_reserved_bytes", rank["peak_memory_bytes"]) for rank in ranks)


def _rows(request: Request, execution: Execution) -> int:
    forwards = execution.gradient_accumulation_steps
    if execution.layout.pp == 1:
        forwards = min(forwards, _FORWARDS)
    rows = forwards * execution.micro_batch_size * execution.layout.data_world_size
    return min(rows, request.job.train.global_batch_size)
