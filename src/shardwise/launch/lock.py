"""What a run needs of its folder: one run at a time, by a lock that the kernel lets go of when its
holder ends, however it ends; and room on its disk for what is written there."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import InputError, RunDirectoryError
from shardwise.spec.plan.beside import Disk
from shardwise.spec.plan.forecast import Plan, TimeForecast
from shardwise.spec.request import Request
from shardwise.spec.run import RunDirectory
from shardwise.units import MIB, format_bytes

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


#: Said where less is left: logs, metrics, reports and the tokenizer's files want some of it.
_LITTLE_BYTES, _LITTLE_SHARE, _LITTLE_FILES = 64 * MIB, 0.05, 100


def check_disk(request: Request, run: RunDirectory, plan: Plan) -> str | None:
    """A sentence where a run hardly fits its disk, or `merged/` will not. Existing checkpoints
    count; if steps are unknown, only certain writes. Raises InputError: it does not fit."""
    above = [path for path in (run.root.resolve(), *run.root.resolve().parents) if path.exists()]
    found, disk = os.statvfs(above[0]), plan.disk
    if not found.f_blocks or disk is None or plan.best is None:
        return None  # a file system that does not say
    free = found.f_bavail * found.f_frsize
    here = f"its disk ({next(path for path in above if path.is_mount())}) has"
    if found.f_files and found.f_favail < _LITTLE_FILES:
        message = f"output_dir {run.root}: {here} room for {found.f_favail} more files; remove some, or name another"
        raise InputError.at(request.where("output_dir"), message)
    needed = _still_written(run, disk, plan.best.time)
    writes = f"output_dir {run.root} is to hold {disk.parts}"
    has = f"and {here} {format_bytes(free)} free"
    if needed > free:
        limit, less = request.job.train.save_total_limit, ""
        if disk.checkpoints_bytes > disk.checkpoint_bytes:
            lower = f"lower train.save_total_limit, now {limit} (one more is held while it is written)"
            less = f", or {lower if limit else 'set train.save_total_limit'}"
        message = (
            f"{writes}, of which {format_bytes(needed)} are not there yet, {has}; free {format_bytes(needed - free)} "
            f"of it, name another output_dir{less}"
        )
        raise InputError.at(request.where("output_dir"), message)
    left = free - needed
    if left < max(_LITTLE_BYTES, _LITTLE_SHARE * needed):
        return f"{writes}, {has}: {format_bytes(left)} will be left for logs and all else; free some before it is full"
    if left < disk.merged_bytes:
        return f"{writes}, {has}: `shardwise merge` would not find the {format_bytes(disk.merged_bytes)} that it writes"
    return None


def _still_written(run: RunDirectory, disk: Disk, time: TimeForecast) -> int:
    """Bytes that are not there yet, at the most at once."""
    if time.total_seconds is None:
        return disk.final_bytes
    saved, steps = run.checkpoints(), round(time.total_seconds / time.step_seconds)
    if not disk.checkpoints_bytes or max((step for step, _ in saved), default=0) >= steps:
        return disk.final_bytes
    held = sum(file.stat().st_size for _, folder in saved for file in folder.iterdir() if file.is_file())
    return max(disk.total_bytes - held, disk.checkpoint_bytes, disk.final_bytes)
