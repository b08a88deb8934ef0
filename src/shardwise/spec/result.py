"""Whether the files of `final/` are those that its manifest records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import inf
from os import stat_result
from pathlib import Path
from typing import Any, cast

from shardwise.spec.run import read_json

MANIFEST = "manifest.json"

#: Files up to this size are always hashed. Hashing all of a large model may take minutes: a larger file is taken for
#: whole where it has the size that was written and was last changed, or put there, before its manifest was.
HASHED_BYTES = 16 * 1024 * 1024


def result_fault(final: Path, *, most_bytes: float = inf) -> str | None:
    """What is wrong with a folder's files; None where nothing is. `most_bytes`: larger files that changed since the
    manifest are hashed up to this size."""
    recorded = (read_json(final / MANIFEST) or {}).get("files")
    if not isinstance(recorded, dict):
        return f"{MANIFEST} is missing or damaged, so that nothing tells whether the other files are whole"
    files = cast(dict[str, Any], recorded)
    written_ns = (final / MANIFEST).stat().st_mtime_ns

    def is_hashed(status: stat_result) -> bool:
        # No program can set the time at which an entry changed (ctime), as copies set that of its content.
        changed = max(status.st_mtime_ns, status.st_ctime_ns) > written_ns
        return status.st_size <= (max(HASHED_BYTES, most_bytes) if changed else HASHED_BYTES)

    for name in sorted(files):
        entry = cast(dict[str, Any], files[name]) if isinstance(files[name], dict) else {}
        fault = file_fault(final / name, entry, is_hashed=is_hashed)
        if fault is not None:
            return f"{name} {fault}"
    return None


def file_fault(
    path: Path, recorded: dict[str, Any], *, is_hashed: Callable[[stat_result], bool] = lambda _: True
) -> str | None:
    """How a file differs from the size and sha256 that were recorded when it was written, or None."""
    try:
        if not path.is_file():
            return "is missing"
        status = path.stat()
        if status.st_size != recorded.get("size"):
            return f"has {status.st_size} bytes, and {recorded.get('size')} were written"
        if not is_hashed(status):
            return None
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == recorded.get("sha256")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if same else f"is not what was written: its sha256 is another than in {MANIFEST}"
