"""Whether the files of `final/` are those that its manifest records."""

from __future__ import annotations

import hashlib
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
        try:
            fault = _fault(final / name, entry)
            if fault is None and is_hashed((final / name).stat()) and _sha256(final / name) != entry.get("sha256"):
                fault = f"is not what was written: its sha256 is another than in {MANIFEST}"
        except OSError as error:
            fault = f"cannot be read: {error.strerror}"
        if fault is not None:
            return f"{name} {fault}"
    return None


def _fault(path: Path, entry: dict[str, Any]) -> str | None:
    """What of a file can be seen without reading it."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    return None if size == entry.get("size") else f"has {size} bytes, and {entry.get('size')} were written"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
