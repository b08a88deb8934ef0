"""Whether the result of a finished run is still what was written: a run that is reported as finished must have one"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

from shardwise.errors import DamagedResultError
from shardwise.launch.folder import is_finished
from shardwise.spec.run import RunDirectory, read_json

#: Files up to this size are hashed; of larger ones, hashing all of which may take minutes, only the size is compared.
HASHED_BYTES = 16 * 1024 * 1024


def has_result(run: RunDirectory) -> bool:
    """Whether the run there has come to its end, and what it left is whole.

    Raises:
        DamagedResultError: it has come to its end, but a file of final/ is missing or changed.
    """
    if not is_finished(run):
        return False
    fault = result_fault(run.final)
    if fault is not None:
        raise DamagedResultError(
            f"{run.final}: {fault}; this run had finished, and its result is damaged. {_remedy(run)}"
        )
    return True


def result_fault(final: Path) -> str | None:
    """What is wrong with a folder beside its manifest, in words; None where nothing is."""
    recorded = (read_json(final / "manifest.json") or {}).get("files")
    if not isinstance(recorded, dict):
        return "manifest.json is missing or damaged, so that nothing tells whether the other files are whole"
    files = cast(dict[str, Any], recorded)
    return next(
        (fault for name in sorted(files) if (fault := _fault(final / name, name, files[name])) is not None), None
    )


def _fault(path: Path, name: str, recorded: Any) -> str | None:
    entry = cast(dict[str, Any], recorded) if isinstance(recorded, dict) else {}
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            return f"{name} is missing"
        if size != entry.get("size"):
            return f"{name} has {size} bytes, and {entry.get('size')} were written"
        if size <= HASHED_BYTES and hashlib.sha256(path.read_bytes()).hexdigest() != entry.get("sha256"):
            return f"{name} is not what was written: its sha256 is another than in manifest.json"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return None


def _remedy(run: RunDirectory) -> str:
    """Nothing is removed without being asked: the other files may be all that is left of a training."""
    checkpoints = run.checkpoints()
    start = (
        f"goes on from {checkpoints[0][1].name}"
        if checkpoints
        else "trains from the beginning, for want of checkpoints,"
    )
    return f"Put the file back from a copy; or remove {run.final}, and the same command {start} and writes it again"
