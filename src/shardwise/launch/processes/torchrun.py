"""When torchrun, Slurm or Kubernetes has started the ranks: one prepares, then all begin together.

Rank 0 waits for a sign of each other rank, prepares the run directory, and writes the start file,
which carries the name of this launch; the other ranks wait for it. So the ranks need a shared file
system, which checkpoints need anyway, and no process group.
"""

import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shardwise.errors import InputError, RunDirectoryError, ShardwiseError
from shardwise.launch.processes import command
from shardwise.launch.processes.command import QUIET, allocator_settings, visible_devices
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.spec.begin import MEETING_SECONDS, SAID_AFTER_SECONDS, left_over
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import CONSOLE, RunDirectory, read_json, write_json, write_text
from shardwise.units import format_ranks

POLL_SECONDS = 0.2
#: How long other ranks look for rank 0: torchrun starts all at once, others one after the other.
PATIENCE_SECONDS, TORCHRUNS_PATIENCE_SECONDS = 600.0, 120.0
STOPPED_WITHIN_SECONDS = 20.0
#: How long rank 0 leaves it to be read that there is nothing to begin.
READ_WITHIN_SECONDS = 5.0

SHARED_DISK = "output_dir must lie on a disk that all nodes share, at the same path"

REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
#: What tells one start from another.
_NAMING = "WORLD_SIZE TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT SLURM_JOB_ID"


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place in a group that something else started. `local_size`: ranks on this
    machine; `launch`: a name that all ranks of this start share and no other start has."""

    rank: int
    size: int
    local_size: int
    launch: str

    @property
    def is_alone(self) -> bool:
        """All ranks are on one machine."""
        return self.local_size == self.size

    @property
    def patience(self) -> float:
        """Seconds that a rank looks for a sign of the others."""
        patience = TORCHRUNS_PATIENCE_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else PATIENCE_SECONDS
        return min(patience, MEETING_SECONDS) if self.is_alone else patience

    def waits_for(self, whom: str) -> str:
        """The beginning of a sentence."""
        where = ":".join(filter(None, map(os.environ.get, ("MASTER_ADDR", "MASTER_PORT"))))
        return f"rank {self.rank} of {self.size} on {socket.gethostname()} waits for {whom} at {where}"

    @property
    def remedy(self) -> str:
        """What to do where the others leave no sign."""
        return left_over() if self.is_alone else f"{SHARED_DISK}; {left_over()}"


def place_in_group(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place; None if a user started it. Raises InputError: non-numeric variables."""
    if any(name not in environment for name in REQUIRED):
        return None
    try:
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_size = int(environment.get("LOCAL_WORLD_SIZE", size))
    except ValueError:
        values = ", ".join(f"{name}={environment[name]}" for name in REQUIRED)
        raise InputError(f"the environment says {values}; expected whole numbers, as torchrun sets them") from None
    if not 0 <= rank < size or not 1 <= local_size <= size:
        raise InputError(
            f"the environment says RANK={rank}, WORLD_SIZE={size}, LOCAL_WORLD_SIZE={local_size}; "
            "a rank lies below the world size"
        )
    parts = [environment.get(name, "") for name in _NAMING.split()]
    if local_size == size:
        # Ports and run ids repeat between starts; the process that started all ranks does not.
        parts.append(str(os.getppid()))
    launch = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Place(rank=rank, size=size, local_size=local_size, launch=launch)


def write_begin(run: RunDirectory, place: Place, *, kind: DeviceKind) -> None:
    """Rank 0: writes that the other ranks begin."""
    write_json(_start_file(run, place), {"begin": True, "kind": kind})


def write_exit(run: RunDirectory, place: Place, *, exit_code: int) -> None:
    """Rank 0: writes that there is nothing to do, or it could not prepare, so that others exit."""
    # Where output_dir is not writable, the launcher stops the other ranks when this one has failed.
    with suppress(OSError):
        write_json(_start_file(run, place), {"begin": False, "exit_code": exit_code})


@contextmanager
def exit_written_on_error(run: RunDirectory, place: Place) -> Generator[None]:
    """Rank 0: whatever ends it, others exit with its exit code. Leaves no start file, as ranks of a
    later start of the same name (torchrun on several machines) would take it for theirs."""
    file = _start_file(run, place)
    try:
        yield
    except BaseException as error:
        if not _begun(file):
            write_exit(run, place, exit_code=error.exit_code if isinstance(error, ShardwiseError) else 1)
        raise
    finally:
        for sign in run.logs.glob(f"{_sign(place)}*"):
            sign.unlink(missing_ok=True)
        if not place.is_alone:
            if not _begun(file):
                time.sleep(READ_WITHIN_SECONDS)
            with suppress(OSError):
                file.unlink()


def _begun(file: Path) -> bool:
    return bool((read_json(file) or {}).get("begin"))


def write_preparing(run: RunDirectory, place: Place) -> None:
    """Rank 0, before it prepares: a sign for the others, in the place of an earlier start file."""
    with suppress(OSError):
        write_json(_start_file(run, place), {"preparing": True})


def wait_for_rank_0(run: RunDirectory, place: Place, *, say: Callable[[str], None]) -> DeviceKind:
    """The other ranks: wait for the start file, and leave a sign where rank 0 is there; which
    devices they use. `say`: is told, once, who is waited for. Raises SystemExit: there is nothing
    to begin, with rank 0's exit code and quietly, for rank 0 has said why; RunDirectoryError: rank
    0 leaves no sign."""
    began, said, answered = time.monotonic(), False, False
    waits = f"{place.waits_for('rank 0')}, and sees no sign of it in {run.logs}"
    while "begin" not in (start := read_json(_start_file(run, place)) or {}):
        time.sleep(POLL_SECONDS)
        waited = time.monotonic() - began
        if start and not answered:
            answered = True
            with suppress(OSError):
                write_text(run.logs / f"{_sign(place)}{place.rank}", "")
        if not start and not said and waited > SAID_AFTER_SECONDS:
            said = True
            say(f"{waits}; {place.remedy}")
        if not start and waited > place.patience:
            raise RunDirectoryError(f"{waits} after {place.patience:g} s; {place.remedy}")
    if not start["begin"]:
        if start["exit_code"]:
            wait_to_be_stopped()
        sys.exit(int(start["exit_code"]))
    return "cuda" if start["kind"] == "cuda" else "cpu"


def await_others(run: RunDirectory, place: Place, *, requests: StopRequests, say: Callable[[str], None]) -> None:
    """Rank 0: waits for all ranks' signs, or a signal. Raises RunDirectoryError: some gave none."""
    began, said = time.monotonic(), False
    while requests.first is None:
        missing = [rank for rank in range(1, place.size) if not (run.logs / f"{_sign(place)}{rank}").exists()]
        if not missing:
            return
        waited = time.monotonic() - began
        waits = f"{place.waits_for(format_ranks(missing))}, and sees no sign of {'them' if missing[1:] else 'it'}"
        if not said and waited > SAID_AFTER_SECONDS:
            said = True
            say(f"{waits} in {run.logs}; {place.remedy}")
        if waited > place.patience:
            raise RunDirectoryError(f"{waits} in {run.logs} after {place.patience:g} s; {place.remedy}")
        requests.wait(POLL_SECONDS / 4)


def wait_to_be_stopped() -> None:
    """The other ranks: let rank 0 print the error. A failing rank makes torchrun stop them all."""
    time.sleep(STOPPED_WITHIN_SECONDS)


def become_worker(run: RunDirectory, place: Place, *, kind: DeviceKind) -> NoReturn:
    """Replaces this process by the worker, whose output goes where other runs have it. The first
    rank of another node keeps this terminal, to say there why it fails."""
    argv = [sys.executable, "-m", "shardwise.programs.rank", str(run.root), command.WORKER]
    sys.stdout.flush()
    sys.stderr.flush()
    environment = joined_environment(kind)
    if not place.is_alone and environment.get("LOCAL_RANK") == "0":
        console = os.dup(2)
        os.set_inheritable(console, True)
        environment[CONSOLE] = str(console)
    os.execve(argv[0], argv, environment)  # noqa: S606 - an argument list, and no shell


def joined_environment(kind: DeviceKind) -> dict[str, str]:
    """A worker's environment: what the launcher and the user have set stays as it is."""
    return {**QUIET, **allocator_settings(os.environ, kind), **os.environ, **visible_devices(kind)}


def _sign(place: Place) -> str:
    return f"here-{place.launch}-"


def _start_file(run: RunDirectory, place: Place) -> Path:
    return run.logs / f"start-{place.launch}.json"
