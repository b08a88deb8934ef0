"""`train`: from a job to a run directory, by workers that it starts or among which it is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shardwise.api.batch import check_open, find_batch
from shardwise.api.calibrated import note
from shardwise.api.planning import plan_for
from shardwise.api.reporting import report_at_the_end
from shardwise.catalog.gpus import reserved_bytes
from shardwise.errors import DoesNotFitError, InputError, Problem, ShardwiseError, UnsupportedError
from shardwise.launch.disk import check_disk
from shardwise.launch.final_files import has_result
from shardwise.launch.follow import Notice, Phase, StepMetrics, tell
from shardwise.launch.lock import locked, take
from shardwise.launch.nodes.peers import stop_if_asked
from shardwise.launch.processes.command import PREPARATION, WORKER, require_torch
from shardwise.launch.processes.data_preparation import prepare_data
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
from shardwise.launch.processes.workers import follow_ranks, forget_last_launch, run_workers
from shardwise.launch.ranks import first_rank, local_ranks
from shardwise.launch.replanned import replanned
from shardwise.launch.requirements import check_compiler, check_present, check_trainable, place_of, training_cluster
from shardwise.launch.run_folder import (
    Before,
    check_same_job,
    found_before,
    held_to,
    known_data,
    run_of,
    taken_back_on_error,
    write_start,
)
from shardwise.report.contents import Report
from shardwise.spec.cluster import Cluster, DeviceKind
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Override, Request, read_request
from shardwise.spec.run import RunDirectory, read_json


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What is going to run; sent before anything starts, and again when the number of rows is known."""

    plan: Plan
    run: RunDirectory


Update = Planned | Phase | StepMetrics | Notice


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The modules that `train` runs as processes of their own, each with the run directory as its argument. `quiet`:
    what preparation says is shown where it fails only."""

    preparation: str = PREPARATION
    worker: str = WORKER
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a training ended. `outcome`: `already_finished` where an earlier start had come to the end and nothing was
    done; `step`: optimizer steps done, where the run says so."""

    run: RunDirectory
    outcome: Literal["finished", "already_finished"]
    step: int | None
    report: Report


def train(
    job: Job | str | Path,
    *,
    overrides: Sequence[str | Override] = (),
    on_update: Callable[[Update], None] | None = None,
    max_restarts: int = 0,
    replan: bool = True,
    find_micro_batch: bool = False,
    programs: Programs | None = None,
) -> TrainResult:
    """Trains a job, or goes on where an earlier start of the same job in the same folder stopped.

    Started by torchrun, Slurm or Kubernetes, the calling process is one of the ranks: rank 0 comes back as if it had
    started all of them, the others become workers and do not return.

    Args:
        job: a job, a job file, or a plan.json, whose chosen candidate is obeyed.
        on_update: called with what is going to run, then with each phase, step and notice.
        max_restarts: how often the workers are started again after a failure, from the last checkpoint.
        replan: a run that comes back with another number of processes is planned again; otherwise refused.
        find_micro_batch: tries real steps first, upwards from the forecast micro-batch, and trains with the largest
            that fits; a run that goes on keeps what it found.

    Raises:
        InputError: the job, the data, the model or the hardware cannot be used as asked.
        DoesNotFitError: no layout fits; no worker was started.
        StoppedError: a signal stopped the run after it saved.
        WorkerFailedError: a worker failed; the message holds the first cause.
        DamagedResultError: an earlier start had come to the end, and its result is damaged.
    """
    programs = programs or Programs()
    place = place_in_group()
    if place is not None:
        if find_micro_batch:
            raise InputError("--find-batch starts the processes of each trial itself; run it without torchrun or srun")
        return _join(job, overrides, place=place, on_update=on_update, replan=replan, programs=programs)
    request, run = asked(job, overrides)
    if find_micro_batch:
        check_open(request)
    cluster, chosen = accept(request, place=None)
    before = Before.of(run)
    with ExitStack() as held:
        with request.blaming("output_dir"):
            lock = held.enter_context(locked(run, say=lambda text: tell([Notice(text=text)], on_update)))
            check_same_job(run, request.job)
        if has_result(run, request.job):
            return result(run, outcome="already_finished")
        say_if_replanned(run, chosen, replan=replan, on_update=on_update)
        forget_last_launch(run)
        chosen = found_before(run, chosen)
        is_open = find_micro_batch and chosen.found_batch is None
        kind, processes = cluster.gpu.kind, _processes(chosen, cluster=cluster)
        with taken_back_on_error(run, before):
            write_first(request, chosen, run=run, on_update=on_update)
            # They import what they need while the data is prepared, and do nothing else before they may begin.
            early = local_ranks(run, processes=processes, kind=kind, module=programs.worker, lock=lock)
            waiting = None if is_open else held.enter_context(early)
            chosen = prepare(request, chosen, run=run, cluster=cluster, on_update=on_update, programs=programs)
        if is_open:
            chosen = find_batch(
                request, chosen, run=run, cluster=cluster, module=programs.worker, lock=lock, on_update=on_update
            )
            write_first(request, chosen, run=run, on_update=on_update)
        run_workers(
            run,
            processes=_processes(chosen, cluster=cluster),
            kind=kind,
            module=programs.worker,
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


def _processes(chosen: Plan, *, cluster: Cluster) -> int:
    """As many as the chosen layout spreads over: `cheapest` and `fewest-gpus` may leave some GPUs alone."""
    return cluster.num_gpus if chosen.best is None else chosen.best.execution.layout.world_size


def _join(
    job: Job | str | Path,
    overrides: Sequence[str | Override],
    *,
    place: Place,
    on_update: Callable[[Update], None] | None,
    replan: bool,
    programs: Programs,
) -> TrainResult:
    """Is one of the ranks that something else started; only rank 0 returns, the others become workers."""
    if place.rank > 0:
        run, kind = _follow_first(job, overrides, place=place, on_update=on_update)
        become_worker(run, place, kind=kind, module=programs.worker)
    request, run = asked(job, overrides)
    # A goal that would choose fewer ranks than were started has no say.
    request = replace(request, job=request.job.model_copy(update={"goal": "fastest"}))
    before = Before.of(run)
    write_preparing(run, place)
    with exit_written_on_error(run, place):
        cluster, chosen = accept(request, place=place)
        with request.blaming("output_dir"):
            lock = take(run, say=lambda text: tell([Notice(text=text)], on_update))
            check_same_job(run, request.job)
        if has_result(run, request.job):
            write_exit(run, place, exit_code=0)
            return result(run, outcome="already_finished")
        say_if_replanned(run, chosen, replan=replan, on_update=on_update)
        forget_last_launch(run)
        chosen, kind = found_before(run, chosen), cluster.gpu.kind
        with ExitStack() as held:
            with taken_back_on_error(run, before):
                with StopRequests() as requests:
                    await_others(run, place, requests=requests, say=lambda text: tell([Notice(text=text)], on_update))
                    stop_if_asked(requests, "stopped before all ranks came")
                write_first(request, chosen, run=run, on_update=on_update)
                first = held.enter_context(first_rank(run, place, kind=kind, lock=lock, module=programs.worker))
                prepare(request, chosen, run=run, cluster=cluster, on_update=on_update, programs=programs)
            write_begin(run, place, kind=kind)
            requests = held.enter_context(StopRequests())
            follow_ranks(run, first, processes=place.size, requests=requests, on_update=on_update)
    return result(run, outcome="finished")


def _follow_first(
    job: Job | str | Path,
    overrides: Sequence[str | Override],
    *,
    place: Place,
    on_update: Callable[[Update], None] | None,
) -> tuple[RunDirectory, DeviceKind]:
    """All ranks read the same job and find the same mistakes in it; it is enough that rank 0 prints them. A rank that
    exits makes torchrun stop the others, rank 0 among them, so this one waits meanwhile. If nothing stops it, the
    mistake may be its own (another disk, another environment), and it says so."""
    try:
        run = run_of(read_request(job, overrides=overrides).job)
    except ShardwiseError:
        wait_to_be_stopped()
        raise
    return run, wait_for_rank_0(run, place, say=lambda text: tell([Notice(text=text)], on_update))


def result(run: RunDirectory, *, outcome: Literal["finished", "already_finished"]) -> TrainResult:
    """Of a run that has come to its end; writes its report, and notes what it measured where it ends just now."""
    said, made = read_json(run.outcome) or {}, report_at_the_end(run)
    if outcome == "finished":
        note(run, made)
    step = said.get("step")
    return TrainResult(run=run, outcome=outcome, step=step if isinstance(step, int) else None, report=made)


def accept(request: Request, *, place: Place | None) -> tuple[Cluster, Plan]:
    """Everything that can be refused without touching a file."""
    require_torch()
    cluster = training_cluster(request, place=place)
    check_trainable(request, cluster=cluster)
    check_present(request, cluster)
    chosen = plan_for(request, cluster=cluster, known=known_data(run_of(request.job)))
    if chosen.best is None:
        reasons = [f"{rejection.strategy}: {rejection.reason}" for rejection in chosen.rejected]
        where = chosen.hardware.get("name", "this machine")
        alone = _would_fit_alone(request, cluster)
        said = [f"nothing fits on {where}", *chosen.notes, *alone, *dict.fromkeys(reasons), *chosen.advice]
        raise DoesNotFitError("\n".join(said))
    check_compiler(request, compiles=chosen.best.execution.compile and cluster.gpu.kind == "cuda")
    if chosen.best.not_trained:
        # What the model's config says is known only here; the rest was refused before.
        otherwise = "model" if request.job.layout == "auto" else "layout"
        problems = [
            Problem(where=place_of(request, reason, otherwise=otherwise), message=reason)
            for reason in chosen.best.not_trained
        ]
        raise UnsupportedError(problems)
    return cluster, chosen


def _would_fit_alone(request: Request, cluster: Cluster) -> list[str]:
    """A sentence where a job would fit in the memory that other programs hold."""
    gpu = cluster.gpu
    kept = reserved_bytes(gpu.memory_bytes)
    if gpu.kind != "cuda" or gpu.reserved_bytes <= kept:
        return []
    free = replace(cluster, node=replace(cluster.node, gpu=replace(gpu, reserved_bytes=kept)))
    if plan_for(request, cluster=free, known=known_data(run_of(request.job))).best is None:
        return []
    return ["it fits where others leave the GPU to it: end what holds its memory, or wait"]


def say_if_replanned(
    run: RunDirectory, chosen: Plan, *, replan: bool, on_update: Callable[[Update], None] | None
) -> None:
    """Says, before it starts, that a run goes on with another number of processes. Raises RunDirectoryError: `replan`
    is False."""
    said = replanned(run, chosen, allowed=replan)
    if said is not None:
        tell([Notice(text=said)], on_update)


def write_first(
    request: Request, chosen: Plan, *, run: RunDirectory, on_update: Callable[[Update], None] | None
) -> None:
    """Says what is going to run, and leaves it in the run directory. Raises InputError: its disk is too small."""
    check_disk(request, run, chosen)
    tell([Planned(plan=chosen, run=run)], on_update)
    write_start(run, request, plan=chosen)


def prepare(
    request: Request,
    chosen: Plan,
    *,
    run: RunDirectory,
    cluster: Cluster,
    on_update: Callable[[Update], None] | None,
    programs: Programs,
) -> Plan:
    """Prepares the data; returns the plan that the workers obey, which knows how many rows there are."""
    known_before = known_data(run)
    tell([Phase(name="preparing data", total_steps=None, detail={})], on_update)
    prepare_data(run, module=programs.preparation, quiet=programs.quiet)
    if known_data(run) != known_before:
        # Only now is it known how many steps there are and how long the sequences are, which rarely reach max_length.
        chosen = plan_for(request, cluster=cluster, known=known_data(run))
        check_disk(request, run, chosen)
        write_start(run, request, plan=chosen)
        tell([Planned(plan=chosen, run=run)], on_update)
    if scarce := check_disk(request, run, chosen):
        tell([Notice(text=scarce)], on_update)
    return chosen
