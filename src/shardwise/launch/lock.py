"""One run per folder: a lock that the kernel lets go of when its holder ends, however it ends."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import RunDirectoryError
from shardwise.spec.run import RunDirectory

#: How long a start waits for ranks of a gone launcher: they notice, save a checkpoint and end.
PATIENCE_SECONDS = 60.0

Say = Callable[[str], None]


@contextmanager
def locked(run: RunDirectory, *, say: Say = lambda _: None) -> Generator[int]:
    """Creates the run directory if needed and holds it; yields the lock's descriptor, for children
    to inherit. Where ranks of a gone launcher hold it, says so and waits for `PATIENCE_SECONDS`.
    Raises RunDirectoryError: another run holds it, or the folder cannot be written."""
    try:
        run.logs.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"output_dir {run.root} cannot be used: {error.strerror}; name another") from None
    try:
        _hold(descriptor, run=run, say=say)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        holder = _holder(descriptor)
        os.close(descriptor)
        who = f" (process {holder})" if holder.isdigit() else ""
        message = f"{run.root} is in use by another run{who}; wait for it, or set another output_dir"
        raise RunDirectoryError(message) from None
    except OSError as error:
        os.close(descriptor)
        message = f"{run.root} cannot be locked: {error.strerror}; choose an output_dir on a disk with locks and room"
        raise RunDirectoryError(message) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(run: RunDirectory) -> bool:
    """Whether a process known to this machine holds a run's lock. Read from the kernel's list
    (proc(5)), so that nothing is locked or written; without such a list, no holder is known."""
    try:
        inode = (run.root / ".lock").stat().st_ino
        held = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    # Devices are not compared: some file systems report another one there than `stat` does.
    return any(" FLOCK " in line and f":{inode} " in line for line in held)


def _hold(descriptor: int, *, run: RunDirectory, say: Say) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    waits = False
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if (holder.isdigit() and Path(f"/proc/{holder}").exists()) or time.monotonic() > until:
                raise
        if not waits:
            waits = True
            say(f"{run.root} is held by ranks whose launcher is gone; waiting up to {PATIENCE_SECONDS:g} s for them")
        time.sleep(0.2)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip()
