"""Becomes another program that cannot outlive the one that started it.

Linux sends a signal to this process when that one ends, however it ends, and the request survives
the exec. A small program of its own (`programs/parent_death.py`), because code that runs between
fork and exec (Popen's `preexec_fn`) can deadlock in a parent with threads.
"""

import ctypes
import os
import signal
import sys
from functools import partial
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(signal_number: int) -> None:
    """Asks Linux to signal this process when the thread that started it ends; else does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def leash_forks() -> None:
    """From now on, forks of this process are killed where it ends, however it ends."""
    os.register_at_fork(after_in_child=partial(end_with_parent, signal.SIGKILL))


def leashed(argv: list[str], *, signal_number: int = signal.SIGTERM) -> list[str]:
    """The command line that starts `argv` on a leash held by this process."""
    program = [sys.executable, "-m", "shardwise.programs.parent_death"]
    return [*program, str(os.getpid()), str(int(signal_number)), *argv]


def become(argv: list[str], *, parent: int, signal_number: int) -> NoReturn:
    """Sets the leash and becomes the program."""
    end_with_parent(signal_number)
    if os.getppid() != parent:
        sys.exit(1)  # the parent ended before the request was made, and nothing would ever be sent
    os.execv(argv[0], argv)  # noqa: S606 - an argument list, and no shell
