"""How a rank is started: its output goes to one log, and it ends with what started it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from shardwise.launch.processes.parent_death import end_with_parent
from shardwise.spec.run import RunDirectory

#: A line of a rank's log behind which a start of it begins; what is above was said by earlier ones.
STARTED = "===== started ====="


def worker_argv(module: str, run: RunDirectory) -> list[str]:
    """The command line of one worker."""
    return [sys.executable, "-m", module, str(run.root)]


def rank_argv(run: RunDirectory, *, module: str) -> list[str]:
    """The command line of `programs/rank.py`, which makes what torchrun or a cluster started such a rank."""
    return [sys.executable, "-m", "shardwise.programs.rank", str(run.root), module]


def open_log(run: RunDirectory, rank: int) -> int:
    """The descriptor of a rank's log, to which it has added where this start begins."""
    log = os.open(run.rank_log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with suppress(OSError):  # a full disk stops nothing here
        os.write(log, f"{STARTED}\n".encode())
    return log


def become_rank(run: RunDirectory, module: str) -> NoReturn:
    """Redirects and becomes the worker (`programs/rank.py`)."""
    rank = int(os.environ["RANK"])
    # torchrun may end without its workers: the kernel's out-of-memory killer chooses as it likes.
    end_with_parent(signal.SIGKILL)
    # A restarted rank begins with a clean slate: what it failed of before is not what it fails of now.
    run.rank_failure(rank).unlink(missing_ok=True)
    log = open_log(run, rank)
    os.dup2(log, 1)
    os.dup2(log, 2)
    argv = worker_argv(module, run)
    os.execv(argv[0], argv)  # noqa: S606 - an argument list, and no shell
