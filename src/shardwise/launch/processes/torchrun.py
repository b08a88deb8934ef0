"""When torchrun, Slurm or Kubernetes has started the ranks already: one of them prepares, then all begin together.

Rank 0 writes the run directory; the others wait for its word in a file that carries the name of this launch. So the
ranks need a shared file system, which checkpoints need anyway, and no process group.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shardwise.errors import InputError, ShardwiseError
from shardwise.launch.processes.command import QUIET, WORKER, allocator_settings, visible_devices
from shardwise.launch.processes.rank import rank_argv
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import RunDirectory, read_json, write_json

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 600.0
FIRST_SPEAKS_WITHIN_SECONDS = 20.0

REQUIRED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place in a group that something else started. `local_size`: ranks on this machine; `launch`: a
    name that all ranks of this start share and no other start has."""

    rank: int
    size: int
    local_size: int
    launch: str


def place_in_group(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place; None where the user started it. Raises InputError: the variables are not numbers."""
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
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID")
    parts = [environment.get(name, "") for name in names]
    if local_size == size:
        # Ports and run ids repeat from one start to the next; the process that started all ranks does not.
        parts.append(str(os.getppid()))
    launch = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Place(rank=rank, size=size, local_size=local_size, launch=launch)


def tell_others(run: RunDirectory, place: Place, *, kind: DeviceKind) -> None:
    """Rank 0's word to begin."""
    write_json(_word(run, place), {"begin": True, "kind": kind})


def send_others_away(run: RunDirectory, place: Place, *, exit_code: int) -> None:
    """Rank 0's word that there is nothing to do, or that it could not prepare."""
    # Where output_dir cannot be written, the others hear of it when the one that started all ranks ends them.
    with suppress(OSError):
        write_json(_word(run, place), {"begin": False, "exit_code": exit_code})


@contextmanager
def sending_away_on_error(run: RunDirectory, place: Place) -> Generator[None]:
    """The others leave as rank 0 does, whatever ends it."""
    try:
        yield
    except BaseException as error:
        send_others_away(run, place, exit_code=error.exit_code if isinstance(error, ShardwiseError) else 1)
        raise


def take_back_word(run: RunDirectory, place: Place) -> None:
    """Rank 0, before it prepares: what an earlier start with the same name left counts for nothing."""
    with suppress(OSError):
        _word(run, place).unlink()


def wait_for_first(run: RunDirectory, place: Place) -> DeviceKind:
    """The other ranks: waits for rank 0's word.

    Returns:
        Which devices the ranks use.

    Raises:
        SystemExit: there is nothing to begin; with rank 0's exit code, and quietly, for rank 0 has said why.
    """
    began, warned = time.monotonic(), False
    while (word := read_json(_word(run, place))) is None:
        time.sleep(POLL_SECONDS)
        if not warned and time.monotonic() - began > PATIENCE_SECONDS:
            warned = True
            print(
                f"rank {place.rank} still waits for rank 0 to write {_word(run, place)}; "
                "is output_dir on a disk that all nodes share?",
                file=sys.stderr,
            )
    if not word["begin"]:
        if word["exit_code"]:
            leave_the_word_to_first()
        sys.exit(int(word["exit_code"]))
    return "cuda" if word["kind"] == "cuda" else "cpu"


def leave_the_word_to_first() -> None:
    """The other ranks: time for rank 0 to say what is wrong. A rank that fails makes torchrun end all of them."""
    time.sleep(FIRST_SPEAKS_WITHIN_SECONDS)


def become_worker(run: RunDirectory, *, kind: DeviceKind, module: str = WORKER) -> NoReturn:
    """Replaces this process by the worker, whose output goes where other runs have it."""
    argv = rank_argv(run, module=module)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, joined_environment(kind))  # noqa: S606 - an argument list, and no shell


def joined_environment(kind: DeviceKind) -> dict[str, str]:
    """What a worker finds in its environment: what the launcher and the user have set stays as it is."""
    return {**QUIET, **allocator_settings(os.environ, kind), **os.environ, **visible_devices(kind)}


def _word(run: RunDirectory, place: Place) -> Path:
    return run.logs / f"start-{place.launch}.json"
