"""Becomes another program that cannot outlive the one that started it.

`python -m shardwise.launch.processes.parent_death PARENT SIGNAL PROGRAM ARGUMENTS...`: Linux sends SIGNAL to this
process when PARENT ends, however it ends, and the request survives the exec. A small program of its own, because code
that runs between fork and exec (Popen's `preexec_fn`) can deadlock in a parent with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(signal_number: int) -> None:
    """Asks Linux to send this process a signal when the thread that started it ends; elsewhere does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def leashed(argv: list[str], *, signal_number: int = signal.SIGTERM) -> list[str]:
    """The command line that starts `argv` on a leash held by this process."""
    return [
        sys.executable,
        "-m",
        "shardwise.launch.processes.parent_death",
        str(os.getpid()),
        str(int(signal_number)),
        *argv,
    ]


def main(arguments: list[str]) -> None:
    """Sets the leash and becomes the program."""
    parent, signal_number, *argv = arguments
    end_with_parent(int(signal_number))
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the request was made, and nothing would ever be sent
    os.execv(argv[0], argv)  # noqa: S606 - an argument list, and no shell


if __name__ == "__main__":
    main(sys.argv[1:])
