"""Opens a run directory: writes what the workers read, or finds that the run there is this one and
goes on with it; and whether the result of a finished one is still what was written."""

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from shardwise.errors import DamagedResultError, JobError, RunDirectoryError
from shardwise.spec.data_facts import DataFacts, Lengths
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job, TrainSpec, differences
from shardwise.spec.job.places import write_places
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.beside import saved_type
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Request, restricted_to
from shardwise.spec.result import result_fault
from shardwise.spec.run import RunDirectory, read_json, read_metrics, write_json, write_text

#: What `auto` becomes once in a run: it changes the result, so no later start may choose again.
SETTLED = ("precision", "optimizer", "save_dtype", "quantize_experts")

#: What may lie in a folder before its first run got far enough to be one.
BEFORE_A_RUN = frozenset({".lock", "logs", "job.yaml", "plan.json"})


def check_same_job(run: RunDirectory, job: Job) -> None:
    """A folder that holds a run may only go on with that run, and one that holds something else is
    left alone. Raises RunDirectoryError: it holds the run of another job or other files, one that
    has trained more steps than the job asks for, or the record of its job is damaged."""
    if not run.resolved.exists():
        _check_empty(run)
        return
    try:
        before = read_job(run.resolved)
    except JobError as error:
        raise RunDirectoryError.at(
            str(run.resolved),
            f"the job of the run in this folder cannot be read ({error.problems[0].message}); "
            "set another output_dir, or remove the folder",
        ) from None
    if not _has_trained(run):
        run.model.unlink(missing_ok=True)
        return  # a start that came to nothing, such as one with a mistake in its job, claims no folder
    difference = next(differences(_as_it_was(before).to_json(), _holding_to(before, job).to_json()), None)
    if difference is not None:
        name, old, new = difference
        raise RunDirectoryError(
            f"{run.root} holds a run with {name} = {json.dumps(old)}, and this job has {json.dumps(new)}; "
            f"to go on with that run set it back, to start a new one set another output_dir"
        )
    _check_length(run, job.train)


def _check_length(run: RunDirectory, train: TrainSpec) -> None:
    """Raises RunDirectoryError: the run there has trained, or saved, more steps than asked for."""
    trained = max([step for step, _ in run.checkpoints()], default=0)
    if is_finished(run):
        trained = max(trained, int((read_json(run.outcome) or {}).get("step") or 0))
    last = (read_metrics(run) or [{}])[-1]
    if not trained or not (train.max_steps or last.get("epoch")):
        return
    asked = train.num_steps(round(last["step"] / last["epoch"]) if last.get("epoch") else 0)
    if asked < trained:
        raise RunDirectoryError(
            f"{run.root} has trained {trained} steps, and this job asks for {asked}; raise train.max_steps or "
            "train.num_train_epochs, or set another output_dir"
        )


def _has_trained(run: RunDirectory) -> bool:
    return (run.metrics.is_file() and run.metrics.stat().st_size > 0) or run.final.exists() or bool(run.checkpoints())


def _check_empty(run: RunDirectory) -> None:
    if run.root.exists() and not run.root.is_dir():
        raise RunDirectoryError(f"output_dir {run.root} is a file; name a new or empty folder")
    others = sorted(path.name for path in run.root.glob("*") if path.name not in BEFORE_A_RUN)
    if others:
        names = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise RunDirectoryError(f"output_dir {run.root} holds other files ({names}); name a new or empty folder")


def _resolved(job: Job, plan: Plan) -> dict[str, Any]:
    """The job with nothing left open: every default, and what each `auto` became."""
    asked = job.to_json()
    if plan.best is None:
        return asked
    chosen = restricted_to(asked, plan.best.execution)
    saved = saved_type(job, storage=plan.model["storage_dtype"], precision=plan.best.execution.precision)
    train = {**chosen["train"], "save_dtype": saved, "quantize_experts": job.quantises_experts}
    return {**chosen, "train": train, "hardware": job.hardware or plan.hardware.get("name")}


def held_to(run: RunDirectory, request: Request) -> Request:
    """The request of a resumed run: what changes the result and is left open stays as settled.
    Mixed precision must not become float32 on the next machine because `auto` means that there."""
    try:
        before = read_job(run.resolved)
    except JobError:
        return request  # none yet, or a damaged one, which `check_same_job` names
    return replace(request, job=_holding_to(before, request.job)) if _has_trained(run) else request


def _holding_to(before: Job, job: Job) -> Job:
    of_run = _as_it_was(before).train
    settled = {name: getattr(of_run, name) for name in SETTLED if getattr(job.train, name) == "auto"}
    return job.model_copy(update={"train": job.train.model_copy(update=settled)})


def _as_it_was(before: Job) -> Job:
    """The job of a run; one from before the key `quantize_experts` has its experts left wide."""
    wide = {"quantize_experts": False} if before.train.quantize_experts == "auto" else {}
    return before.model_copy(update={"train": before.train.model_copy(update=wide)})


def found_before(run: RunDirectory, chosen: Plan) -> Plan:
    """The plan of the run there, where trials found its micro-batch; else the one chosen now."""
    if not (_has_trained(run) and run.plan.is_file()) or chosen.job["train"]["micro_batch_size"] != "auto":
        return chosen
    before = read_plan(run.plan)
    same = before.hardware.get("name") == chosen.hardware.get("name") and _one_by_one(before) == _one_by_one(chosen)
    return before if before.found_batch is not None and same else chosen


def _one_by_one(plan: Plan) -> Execution | None:
    alone = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "reduce_once": False}
    return None if plan.best is None else replace(plan.best.execution, **alone)


def is_finished(run: RunDirectory) -> bool:
    """The run there has come to its end and its result lies in final/."""
    outcome = read_json(run.outcome) or {}
    return outcome.get("outcome") == "finished" and run.final.is_dir() and any(run.final.iterdir())


def has_another_length(run: RunDirectory, job: Job) -> bool:
    """Whether the run there, whose job is this one, was to take another number of steps or epochs.
    Raises RunDirectoryError: it was, and has no checkpoint to go on from."""
    before, now = read_job(run.resolved).train, job.train
    if (before.max_steps, before.num_train_epochs) == (now.max_steps, now.num_train_epochs):
        return False
    if run.checkpoints():
        return True
    lacking, why = "without a checkpoint", "; full fine-tuning keeps one where train.save_steps is set"
    if unfinished := ", ".join(run.unfinished()):
        lacking = f"whose checkpoints have no manifest, which is written last: {unfinished}. They are unfinished"
        why = ""
    raise RunDirectoryError(
        f"{run.root} holds a finished run {lacking}, so that it cannot go on to another length{why}. Train {run.final} "
        "further in another output_dir"
    )


def write_start(run: RunDirectory, request: Request, *, plan: Plan) -> None:
    """Writes what the workers start from; each file appears whole."""
    write_text(run.job, request.text)
    write_json(run.resolved, _resolved(request.job, plan))
    write_places(run, request.written.by_key)
    write_json(run.plan, plan.to_json())


@dataclass(frozen=True, kw_only=True)
class Before:
    """What was there before a start: `names` in it, `missing` folders above it, innermost first."""

    names: frozenset[str]
    missing: tuple[Path, ...]

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """As it is now."""
        missing = tuple(folder for folder in (run.root, *run.root.parents) if not folder.exists())
        return cls(names=frozenset(path.name for path in run.root.glob("*")), missing=missing)


@contextmanager
def taken_back_on_error(run: RunDirectory, before: Before) -> Generator[None]:
    """Where a start is refused, removes what it wrote: unusable data leave no run directory behind.
    The folder, whose lock the caller holds, is made first all the same: that it cannot be shall not
    turn out when an hour of preparation is done."""
    try:
        yield
    except BaseException:
        for path in run.root.glob("*"):
            if path.name not in before.names:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for folder in before.missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def known_data(run: RunDirectory) -> tuple[int | None, Lengths | None]:
    """Training samples of the run's prepared data and their lengths; None and None before that."""
    facts = DataFacts.read(read_json(run.data))
    return (None, None) if facts is None else facts.train.known


def run_of(job: Job) -> RunDirectory:
    """The run directory a job names."""
    return RunDirectory(Path(job.output_dir))


def has_result(run: RunDirectory, job: Job) -> bool:
    """Whether the run there has come to the end of this job. Raises DamagedResultError: a file of
    final/ is missing or changed; RunDirectoryError: it is to go on, and has no checkpoint."""
    if not is_finished(run):
        return False
    if (fault := result_fault(run.final)) is not None:
        # Nothing is removed unasked: the other files may be all that is left of a training.
        start = "trains from the beginning, for want of checkpoints,"
        if checkpoints := run.checkpoints():
            start = f"goes on from {checkpoints[0][1].name}"
        raise DamagedResultError(
            f"{run.final}: {fault}; this run had finished, and its result is damaged. Put the file back from a copy; "
            f"or remove {run.final}, and the same command {start} and writes it again"
        )
    return not has_another_length(run, job)


def is_whole(run: RunDirectory) -> bool:
    """Whether the run there has come to its end, and what it left is whole."""
    return is_finished(run) and result_fault(run.final) is None


def finished_job(run: RunDirectory) -> Job:
    """The job of a finished run. Raises RunDirectoryError: there is no run, or it has not come to
    its end; DamagedResultError: a file of final/ is missing or changed."""
    if not run.resolved.is_file():
        raise RunDirectoryError(f"{run.root} holds no run; expected the output_dir of a training run")
    if not is_finished(run):
        raise RunDirectoryError(f"{run.root} holds a run that has not finished; `shardwise train` goes on with it")
    if (fault := result_fault(run.final)) is not None:
        raise DamagedResultError(f"{run.final}: {fault}; put the file back from a copy")
    return read_job(run.resolved)
