"""How a run ended: finished, or one cause out of the many messages of a failing group of processes.

When one rank fails, its peers fail too, of broken connections. The first cause is the earliest
failure that a worker wrote down; unless a rank vanished without a word (out of memory, segmentation
fault, a library that ends the process), which the workers that lived on could only see from
outside. A rank that torch aborted because its device failed has the cause in its log.
"""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from typing import Any

from shardwise.errors import (
    InputError,
    RanOutOfMemoryError,
    ShardwiseError,
    StoppedError,
    UnsupportedError,
    WorkerFailedError,
)
from shardwise.launch.follow import FollowUpdate, Notice, tell
from shardwise.launch.processes.command import STARTED
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.run_folder import is_whole
from shardwise.spec.run import RunDirectory, read_json

#: A rank ended by one of these was not ended by its peers' failure.
VIOLENT = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

#: Exit codes from here on are 128 and the signal that a rank stopped on, as it was asked to.
_BY_SIGNAL = 128

HINTS = {
    signal.SIGKILL: "; the kernel does that when memory runs out (see `dmesg`), and so do cluster managers",
    signal.SIGSEGV: "; a native library crashed",
}

#: What a rank's own watch writes as the kind of its failure.
STALL = "StallError"
#: A rank without memory's kind of failure: peers fail of broken connections, before or after.
OUT_OF_MEMORY = "OutOfMemoryError"

NUM_LINES = 15
MAX_BYTES_READ = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """How a rank was seen to end; a negative code is minus the signal."""

    rank: int
    code: int


def first_cause(run: RunDirectory, *, processes: int, exits: Sequence[RankExit] = ()) -> ShardwiseError:
    """The error to raise after the workers ended with a failure. `exits`: how ranks failed, as far
    as it is known; not of those that were killed after the failure."""
    failures = written_failures(run, processes=processes)
    without_memory = [failure for failure in failures if failure.get("error") == OUT_OF_MEMORY]
    if without_memory:
        return _written(run, min(without_memory, key=_time))
    silent = [e for e in exits if e.rank not in {int(failure["rank"]) for failure in failures}]
    vanished = [e for e in silent if -e.code in VIOLENT or 0 < e.code < _BY_SIGNAL]
    if vanished:
        killed = -vanished[0].code == signal.SIGKILL
        return (RanOutOfMemoryError if killed else WorkerFailedError)(_ended_silently(run, vanished[0]))
    faults = [
        (*fault, e)
        for e in silent
        if -e.code == signal.SIGABRT and (fault := device_fault(_said(run.rank_log(e.rank))))
    ]
    earliest = min(map(_time, failures), default=float("inf"))
    at, line, end = min(faults, key=lambda fault: fault[0], default=(float("inf"), "", None))
    if end is not None and at <= earliest:
        return WorkerFailedError(f"rank {end.rank} {how_it_ended(end.code)}: {line}\nits log: {run.rank_log(end.rank)}")
    if failures:
        return _written(run, min(failures, key=_time))
    if silent:
        return WorkerFailedError(_ended_silently(run, min(silent, key=lambda e: -e.code == signal.SIGTERM)))
    # Where even the cause could not be written (a full disk), the logs of the ranks may have it.
    logs = [log for log in sorted(run.logs.glob("rank_*.log")) if _said(log).strip()]
    return WorkerFailedError("\n".join(["the ranks failed, and none could say why", *map(last_lines, logs)]))


def stall(run: RunDirectory, *, processes: int) -> str | None:
    """What ranks wrote who no longer got on; None where the run ended of something else."""
    written = sorted(written_failures(run, processes=processes), key=_time)
    return str(written[0].get("message", "")).strip() if written and written[0].get("error") == STALL else None


def written_failures(run: RunDirectory, *, processes: int) -> list[dict[str, Any]]:
    """The failures that workers wrote down, with their rank."""
    found = ((rank, read_json(run.rank_failure(rank))) for rank in range(processes))
    return [{**failure, "rank": rank} for rank, failure in found if failure is not None]


def tail(path: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MAX_BYTES_READ))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _time(failure: dict[str, Any]) -> float:
    time = failure.get("time")
    return float(time) if isinstance(time, int | float) else float("inf")


def _written(run: RunDirectory, failure: dict[str, Any]) -> ShardwiseError:
    message = str(failure.get("message", "")).strip()
    if failure.get("input_error") is True:
        return UnsupportedError(message) if failure.get("error") == UnsupportedError.__name__ else InputError(message)
    rank = int(failure["rank"])
    kind = failure.get("error", "an error")
    cause = message if kind == OUT_OF_MEMORY else f"{kind}: {message}"
    place = f" ({failure['file']}:{failure['line']})" if failure.get("file") and failure.get("line") else ""
    raised = RanOutOfMemoryError if kind == OUT_OF_MEMORY else WorkerFailedError
    return raised(
        f"rank {rank} failed while {failure.get('phase', 'starting')}: {cause}{place}\nits log: {run.rank_log(rank)}"
    )


def _ended_silently(run: RunDirectory, end: RankExit) -> str:
    log = run.rank_log(end.rank)
    return f"rank {end.rank} {how_it_ended(end.code)}\n{last_lines(log)}"


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code} and left no reason"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by signal {number.value} ({number.name}){HINTS.get(number, '')}"


def last_lines(log: Path) -> str:
    """The end of what the last start wrote to a log, set apart from the message above it."""
    lines = [line for line in _said(log).splitlines() if line.strip()][-NUM_LINES:]
    if not lines:
        return f"it wrote nothing to its log: {log}"
    return "\n".join([f"the end of {log}:", *(f"  | {line}" for line in lines)])


def _said(log: Path) -> str:
    return tail(log).rpartition(f"{STARTED}\n")[2]


#: What CUDA, NCCL and the driver say of a device or a link.
_FAULT = re.compile(r"CUDA error|device-side assert|Assertion .* failed|uncorrectable|NVLink|NCCL WARN", re.IGNORECASE)
#: What NCCL says where a peer has gone: an effect, not the cause.
_OF_A_PEER = re.compile(r"remote process|ncclRemoteError|connection closed by|connection reset", re.IGNORECASE)
#: Local time in front of torch's C++ logs: `[E1125 16:09:32.123456789 ProcessGroupNCCL.cpp:...`.
_LOGGED_AT = re.compile(r"\[[EFWI](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})")


def device_fault(said: str) -> tuple[float, str] | None:
    """When a log first reports a device fault, in seconds since the epoch, and the line; else None.

    The time is that of the next line that has one; infinite where none has. torch's NCCL watchdog
    thread sees a failed device at its next query and aborts the process, often before the main
    thread comes to know of it.
    """
    lines = said.splitlines()
    for index, line in enumerate(lines):
        if _FAULT.search(line) and not _OF_A_PEER.search(line):
            times = (_logged_at(later) for later in lines[index:])
            return next((at for at in times if at is not None), float("inf")), line.strip()
    return None


def _logged_at(line: str) -> float | None:
    found = _LOGGED_AT.search(line)
    if found is None:
        return None
    now = datetime.now(UTC).astimezone()
    month, day, hour, minute, second, micro = map(int, found.groups())
    try:
        return now.replace(month=month, day=day, hour=hour, minute=minute, second=second, microsecond=micro).timestamp()
    except ValueError:  # no such day
        return None


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

    A run that wrote that it finished, and whose result is whole, has finished, whatever became of
    its processes after: nothing of it is lost, and the same command would find it so. What became
    of them is told as a notice. `failed`: a rank failed; `exits`: as of `first_cause`; `blame`:
    what is known of another machine, which comes before what ranks say, who fail of it.

    Raises StoppedError: a signal stopped the run; InputError: a worker refused the user's input;
    WorkerFailedError: a worker failed."""
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
        raise StoppedError(f"stopped{at} by {name}; {resume_hint(run)}", exit_code=128 + (asked or Signals.SIGTERM))
    raise WorkerFailedError(f"the workers ended without saying how; look into {run.rank_log(0)}")


def _failed(run: RunDirectory, cause: ShardwiseError, *, stalled: str | None, asked: Signals | None) -> ShardwiseError:
    """The error of a failure, with what the same command does next, except for a user's mistake.
    `stalled`: what ranks wrote who no longer got on; None where they ended of something else."""
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
