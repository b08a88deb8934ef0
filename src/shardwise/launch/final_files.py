"""Whether the result of a finished run is still what was written: a run that is reported as finished must have one"""

from __future__ import annotations

from shardwise.errors import DamagedResultError, RunDirectoryError
from shardwise.launch.run_folder import has_another_length, is_finished
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.result import result_fault
from shardwise.spec.run import RunDirectory


def has_result(run: RunDirectory, job: Job) -> bool:
    """Whether the run there has come to the end of this job, and what it left is whole. Raises DamagedResultError: it
    has come to its end, but a file of final/ is missing or changed; RunDirectoryError: it is to go on to another length
    and has no checkpoint."""
    if not is_finished(run):
        return False
    fault = result_fault(run.final)
    if fault is not None:
        # Nothing is removed without being asked: the other files may be all that is left of a training.
        checkpoints = run.checkpoints()
        start = (
            f"goes on from {checkpoints[0][1].name}"
            if checkpoints
            else "trains from the beginning, for want of checkpoints,"
        )
        raise DamagedResultError(
            f"{run.final}: {fault}; this run had finished, and its result is damaged. Put the file back from a copy; "
            f"or remove {run.final}, and the same command {start} and writes it again"
        )
    return not has_another_length(run, job)


def is_whole(run: RunDirectory) -> bool:
    """Whether the run there has come to its end, and what it left is whole."""
    return is_finished(run) and result_fault(run.final) is None


def finished_job(run: RunDirectory) -> Job:
    """The job of a finished run. Raises RunDirectoryError: there is no run, or it has not come to its end;
    DamagedResultError: a file of final/ is missing or changed."""
    if not run.resolved.is_file():
        raise RunDirectoryError(f"{run.root} holds no run; expected the output_dir of a training run")
    if not is_finished(run):
        raise RunDirectoryError(f"{run.root} holds a run that has not finished; `shardwise train` goes on with it")
    if (fault := result_fault(run.final)) is not None:
        raise DamagedResultError(f"{run.final}: {fault}; put the file back from a copy")
    return read_job(run.resolved)
