"""One run per folder: a lock that the kernel lets go of when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager

from shardwise.errors import RunDirectoryError
from shardwise.spec.run import RunDirectory


@contextmanager
def locked(run: RunDirectory) -> Generator[int]:
    """Creates the run directory where there is none and holds it; yields the descriptor of the lock, for children to
    inherit. Raises RunDirectoryError: another run holds it, or the folder cannot be written."""
    descriptor = take(run)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take(run: RunDirectory) -> int:
    """`locked` for a process that holds the lock until it ends."""
    try:
        run.logs.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunDirectoryError(f"output_dir {run.root} cannot be used: {error.strerror}; name another") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        who = f" (process {holder})" if holder.isdigit() else ""
        message = f"{run.root} is in use by another run{who}; wait for it, or set another output_dir"
        raise RunDirectoryError(message) from None
    except OSError as error:
        os.close(descriptor)
        message = f"{run.root} cannot be locked: {error.strerror}; choose an output_dir on a disk with file locks"
        raise RunDirectoryError(message) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
