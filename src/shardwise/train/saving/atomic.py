"""Atomic folders, and file actions whose failure on one rank is known to all."""

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from shardwise.errors import ShardwiseError
from shardwise.parallel.mesh import World
from shardwise.spec.run import sync_folder
from shardwise.train.guards.checks import gather
from shardwise.units import format_bytes

T = TypeVar("T")


class SaveError(ShardwiseError):
    """A file action failed on some rank; every rank raises this with the same message."""


def together(world: World, action: Callable[[], T], *, what: str, into: Path | None = None, size: int = 0) -> T:
    """Runs a file action on this rank; SaveError on every rank if it failed on one. `into`, `size`:
    the folder it writes to, and how many bytes, for the message where there is no room."""
    result: Any = None
    failure: str | None = None
    try:
        result = action()
    except Exception as error:  # noqa: BLE001  # raised again on every rank
        failure = f"{type(error).__name__}: {error}"
        if into is not None and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            has = shutil.disk_usage(into).free + sum(file.stat().st_size for file in into.rglob("*") if file.is_file())
            failure = (  # its files will be removed
                f"{error.strerror}: {format_bytes(size)} were to be written, and the disk of {into.parent} had "
                f"{format_bytes(has)} free; free some, or lower train.save_total_limit"
            )
    for rank, reason in enumerate(gather(world, failure)):
        if reason is not None:
            raise SaveError(f"{what} failed on rank {rank}: {reason}")
    return result


def open_stage(world: World, target: Path) -> Path:
    """Makes a new folder beside the target, on all ranks."""
    # Rank 0's name for all; a new one each time, as a killed run may have left another.
    made = target.with_name(gather(world, f".{target.name}.{uuid.uuid4().hex[:8]}")[0])
    with removed_on_error(made) as folder:
        together(world, lambda: folder.mkdir(parents=True, exist_ok=True), what=f"making a folder for {target.name}")
    return folder


def commit_stage(world: World, folder: Path, target: Path) -> None:
    """Renames a filled folder to the target's name, on rank 0."""
    together(world, lambda: commit(folder, target) if world.is_first else None, what=f"committing {target.name}")


@contextmanager
def removed_on_error(folder: Path) -> Iterator[Path]:
    """Removes a new folder if the body fails, on every rank: machines may have one each."""
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def commit(folder: Path, target: Path) -> None:
    """Syncs a folder and renames it to the target; if a rename fails, an old target is restored."""
    # A name is on disk only once its folder is, whatever was done for the file.
    for inner in (*sorted(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync_folder(inner)
    # A folder is not renamed over another: the old one steps aside, and is there until the end.
    replaced, replaces = target.with_name(f".{target.name}.replaced"), target.exists()
    shutil.rmtree(replaced, ignore_errors=True)
    if replaces:
        target.rename(replaced)
    try:
        folder.rename(target)
    except OSError:
        if replaces:
            replaced.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def seal(path: Path) -> dict[str, Any]:
    """Syncs a file to disk and returns its size and sha256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def remove_leftovers(folder: Path) -> None:
    """Removes a killed run's staged folders, and restores a target that was being replaced."""
    for replaced in folder.glob(".*.replaced"):
        target = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not target.exists():
            replaced.rename(target)
    for leftover in (*folder.glob(".checkpoint-*"), *folder.glob(".final.*")):
        shutil.rmtree(leftover, ignore_errors=True)
