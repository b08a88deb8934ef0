"""The start signal: ranks start while data is prepared, import what they need, and wait for it."""

import os
import sys

#: Set in the environment of ranks that wait for the start signal on standard input: the family of
#: the model that they will train, or nothing where it is not known yet.
WAITS = "SHARDWISE_WAITS"

#: Set in the environment of rank 0: a descriptor that listens at MASTER_ADDR and MASTER_PORT
#: already. Other ranks of a run on several machines have NOT_HERE.
LISTENING = "SHARDWISE_LISTENING"
NOT_HERE = -1

#: What torchrun tells a process of its place, which it may find left over from another start.
PLACED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: How long ranks on one machine wait for each other to be started, and from when on that is said.
MEETING_SECONDS, SAID_AFTER_SECONDS = 300.0, 5.0

START_SIGNAL = b"begin\n"


def awaited_family() -> str | None:
    """The family of the model to come, where this process was started before the run directory is
    complete; None elsewhere."""
    return os.environ.get(WAITS)


def wait_to_begin() -> None:
    """Waits for the start signal, if it is to. Raises SystemExit: the launcher ended before."""
    if os.environ.pop(WAITS, None) is None:
        return
    received = b""
    while received != START_SIGNAL:
        more = os.read(0, len(START_SIGNAL) - len(received))
        if not more:
            sys.exit(1)
        received += more


def left_over() -> str:
    """What to do where nobody starts the ranks that this one waits for, as a clause."""
    names = [name for name in PLACED if name in os.environ]
    return (
        f"start them together, by torchrun or srun; if {' and '.join(names[:2])} are left over from another start, put "
        f"`env {' '.join(f'-u {name}' for name in names)}` before the command"
    )
