"""Whether the disk of output_dir has room for what a run writes there."""

import os

from shardwise.errors import InputError
from shardwise.spec.plan.beside import Disk
from shardwise.spec.plan.forecast import Plan, TimeForecast
from shardwise.spec.request import Request
from shardwise.spec.run import RunDirectory
from shardwise.units import MIB, format_bytes

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
