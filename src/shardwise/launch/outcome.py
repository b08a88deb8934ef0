"""How a run ended, by what its workers left: it has finished, or here is the error to raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from signal import Signals

from shardwise.errors import ShardwiseError, StoppedError, WorkerFailedError
from shardwise.launch.failure import RankExit, first_cause, stall
from shardwise.launch.follow import FollowUpdate, Notice, tell
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.run_folder import is_whole
from shardwise.spec.run import RunDirectory, read_json


def conclude(
    run: RunDirectory,
    *,
    failed: bool,
    exits: Sequence[RankExit],
    requests: StopRequests,
    processes: int,
    blame: str | None = None,
    on_update: Callable[[FollowUpdate], None] | None = None,
) -> None:
    """Comes back where the run has finished, and raises how it ended where it has not.

    A run that wrote that it finished, and whose result is whole, has finished, whatever became of its processes after:
    nothing of it is lost, and the same command would find it so. What became of them is told as a notice.

    Args:
        failed: a rank failed.
        exits: how ranks ended, without those that were killed after a failure, which says nothing.
        blame: what is known of another machine; it comes before what ranks say, who fail of it.
        on_update: hears the notice.

    Raises:
        StoppedError: a signal stopped the run.
        InputError: a worker refused the user's input.
        WorkerFailedError: a worker failed.
    """
    asked = requests.first
    said = read_json(run.outcome) or {}
    if asked is not None and requests.is_urgent:
        raise StoppedError(f"ended at once by a second signal; {resume_hint(run)}", exit_code=128 + asked)
    if failed:
        cause = first_cause(run, processes=processes, exits=[end for end in exits if end.code])
        if blame is not None and isinstance(cause, WorkerFailedError):
            cause = WorkerFailedError(f"{blame}\n{cause}")
        if not is_whole(run):
            raise _failed(run, cause, stalled=stall(run, processes=processes), asked=asked)
        how = str(cause).splitlines()[0]
        tell([Notice(text=f"the run had finished, and its result is whole, before this happened: {how}")], on_update)
    if said.get("outcome") == "finished":
        return
    if said.get("outcome") == "stopped":
        step, name = said.get("step"), "a signal" if asked is None else asked.name
        at = f" after step {step}" if isinstance(step, int) else ""
        sentence = f"stopped{at} by {name}; {resume_hint(run)}"
        raise StoppedError(sentence, exit_code=128 + (asked or Signals.SIGTERM))
    raise WorkerFailedError(f"the workers ended without saying how; look into {run.rank_log(0)}")


def _failed(run: RunDirectory, cause: ShardwiseError, *, stalled: str | None, asked: Signals | None) -> ShardwiseError:
    """The error of a failure, with what the same command does next, unless it is the user's mistake that comes first.

    Args:
        stalled: what ranks wrote who no longer got on; None where they ended of something else.
    """
    if stalled is not None and asked is not None:
        sentence = f"ended by {asked.name} without a last checkpoint, because {stalled}; {resume_hint(run)}"
        return StoppedError(sentence, exit_code=128 + asked)
    if isinstance(cause, WorkerFailedError) and (stalled is not None or run.checkpoints()):
        return WorkerFailedError(f"{cause}\n{resume_hint(run)}")
    return cause


def resume_hint(run: RunDirectory) -> str:
    """Where a next start goes on."""
    checkpoints = run.checkpoints()
    if not checkpoints:
        return "there is no checkpoint, so the same command starts from the beginning"
    return f"the same command goes on from {checkpoints[0][1]}"
