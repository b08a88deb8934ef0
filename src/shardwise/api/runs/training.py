"""`train`: from a job to a run directory, by workers that it starts or among which it is one."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shardwise.api.after import report
from shardwise.api.plans.calibrated import note
from shardwise.api.plans.shapes import read_request
from shardwise.api.runs.batch import check_open, find_batch
from shardwise.api.runs.opening import OnUpdate, Opening
from shardwise.errors import InputError, ShardwiseError
from shardwise.launch.follow import Notice, tell
from shardwise.launch.nodes.peers import stop_if_asked
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import (
    Place,
    await_others,
    become_worker,
    exit_written_on_error,
    place_in_group,
    wait_for_rank_0,
    wait_to_be_stopped,
    write_begin,
    write_exit,
    write_preparing,
)
from shardwise.launch.processes.workers import follow_ranks, run_workers
from shardwise.launch.ranks import first_rank, local_ranks
from shardwise.launch.run_folder import Before, held_to, run_of, taken_back_on_error
from shardwise.report.contents import Report
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.job.keys import Job
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory, read_json


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a training ended. `outcome`: `already_finished` where an earlier start had come to the
    end and nothing was done; `step`: optimizer steps done, where the run says so."""

    run: RunDirectory
    outcome: Literal["finished", "already_finished"]
    step: int | None
    report: Report


def train(
    job: Job | str | Path,
    *,
    overrides: Sequence[str | Override] = (),
    on_update: OnUpdate = None,
    max_restarts: int = 0,
    replan: bool = True,
    find_micro_batch: bool = False,
    quiet: bool = False,
) -> TrainResult:
    """Trains a job, or goes on where an earlier start of the same job in the same folder stopped.

    Started by torchrun, Slurm or Kubernetes, the calling process is one of the ranks: rank 0 comes
    back as if it had started all of them, the others become workers and do not return.

    `job`: a job, a job file, or a plan.json, whose chosen candidate is obeyed; `on_update`: hears
    what is going to run, then each phase, step and notice; `max_restarts`: as of `run_workers`;
    `replan`: a run that comes back with another number of processes is planned again, and not
    refused; `find_micro_batch`: tries real steps first, upwards from the forecast micro-batch, and
    trains with the largest that fits; a run that goes on keeps what it found; `quiet`: what data
    preparation says is shown where it fails only.

    Raises InputError: the job, the data, the model or the hardware cannot be used as asked;
    DoesNotFitError: no layout fits, and no worker was started; StoppedError: a signal stopped the
    run after it saved; WorkerFailedError: a worker failed, with the first cause;
    DamagedResultError: an earlier start had come to the end, and its result is damaged."""
    place = place_in_group()
    if place is not None:
        if find_micro_batch:
            raise InputError("--find-batch starts the processes of each trial itself; run it without torchrun or srun")
        return _join(job, overrides, place=place, on_update=on_update, replan=replan)
    request, run = asked(job, overrides)
    if find_micro_batch:
        check_open(request)
    before = Before.of(run)
    with ExitStack() as held:
        opening = Opening.of(request, run, place=None, held=held, on_update=on_update)
        if not opening.goes_on(replan=replan):
            return result(run, outcome="already_finished")
        is_open = find_micro_batch and opening.plan.found_batch is None
        kind, lock = opening.planning.cluster.gpu.kind, opening.lock
        with taken_back_on_error(run, before):
            opening.write()
            # They import what they need while the data is prepared, and do nothing else before they
            # may begin.
            early = local_ranks(run, processes=opening.processes, kind=kind, family=opening.family, lock=lock)
            waiting = None if is_open else held.enter_context(early)
            opening.prepare(quiet=quiet)
        if is_open:
            opening.plan = find_batch(opening.planning, opening.plan, run=run, lock=lock, on_update=on_update)
            opening.write()
        run_workers(
            run,
            processes=opening.processes,
            kind=kind,
            max_restarts=max_restarts,
            lock=lock,
            waiting=waiting,
            on_update=on_update,
        )
        return result(run, outcome="finished")


def asked(job: Job | str | Path, overrides: Sequence[str | Override]) -> tuple[Request, RunDirectory]:
    """What is asked, and of which folder, whose run may have settled some of it."""
    request = read_request(job, overrides=overrides)
    run = run_of(request.job)
    return held_to(run, request), run


def _join(
    job: Job | str | Path, overrides: Sequence[str | Override], *, place: Place, on_update: OnUpdate, replan: bool
) -> TrainResult:
    """Is a rank that something else started; only rank 0 returns, others become workers."""
    if place.rank > 0:
        run, kind = _follow_first(job, overrides, place=place, on_update=on_update)
        become_worker(run, place, kind=kind)
    request, run = asked(job, overrides)
    # A goal that would choose fewer ranks than were started has no say.
    request = replace(request, job=request.job.model_copy(update={"goal": "fastest"}))
    before = Before.of(run)
    write_preparing(run, place)
    with exit_written_on_error(run, place), ExitStack() as held:
        opening = Opening.of(request, run, place=place, held=held, on_update=on_update)
        if not opening.goes_on(replan=replan):
            write_exit(run, place, exit_code=0)
            return result(run, outcome="already_finished")
        kind = opening.planning.cluster.gpu.kind
        with taken_back_on_error(run, before):
            with StopRequests() as requests:
                await_others(run, place, requests=requests, say=opening.say)
                stop_if_asked(requests, "stopped before all ranks came")
            opening.write()
            worker = first_rank(run, place, kind=kind, lock=opening.lock, family=opening.family)
            first = held.enter_context(worker)
            opening.prepare()
        write_begin(run, place, kind=kind)
        requests = held.enter_context(StopRequests(also_after_errors=True))
        follow_ranks(run, first, processes=place.size, requests=requests, on_update=on_update)
        return result(run, outcome="finished")


def _follow_first(
    job: Job | str | Path, overrides: Sequence[str | Override], *, place: Place, on_update: OnUpdate
) -> tuple[RunDirectory, DeviceKind]:
    """All ranks read the same job and find the same mistakes in it; it is enough that rank 0 prints
    them. A rank that exits makes torchrun stop the others, rank 0 among them, so this one waits
    meanwhile. If nothing stops it, the mistake may be its own (another disk, another environment),
    and it says so."""
    try:
        run = run_of(read_request(job, overrides=overrides).job)
    except ShardwiseError:
        wait_to_be_stopped()
        raise
    return run, wait_for_rank_0(run, place, say=lambda text: tell([Notice(text=text)], on_update))


def result(run: RunDirectory, *, outcome: Literal["finished", "already_finished"]) -> TrainResult:
    """Of a run that has come to its end; writes its report, and notes what it measured."""
    said, made = read_json(run.outcome) or {}, report(run.root)
    if outcome == "finished":
        note(run, made)
    step = said.get("step")
    return TrainResult(run=run, outcome=outcome, step=step if isinstance(step, int) else None, report=made)
