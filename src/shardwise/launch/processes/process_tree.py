"""The processes of one launch: finding them all, signalling some, and ending every one.

torchrun gives each rank a session of its own, so no process group holds them all. Each process of a
launch carries the launch's name in its environment instead, which children inherit and which
survives the death of any parent.
"""

import os
import signal
import time
from pathlib import Path

from shardwise.spec.run import LAUNCH

PROC = Path("/proc")

#: How long ending a launch may take.
PATIENCE_SECONDS = 10.0


def of_launch(name: str) -> frozenset[int]:
    """Pids of all living processes of a launch, without ended ones that nobody has waited for."""
    mark = f"{LAUNCH}={name}".encode()
    folders = (folder for folder in (PROC.iterdir() if PROC.is_dir() else ()) if folder.name.isdigit())
    return frozenset(int(folder.name) for folder in folders if mark in _environment(folder))


def send(pid: int, signal_number: int) -> bool:
    """Sends a signal; False where the process has gone."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def end_all(name: str) -> None:
    """Kills every process of a launch, also those being started, but what hangs in the kernel."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := of_launch(name)) and time.monotonic() < deadline:
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def _environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []
