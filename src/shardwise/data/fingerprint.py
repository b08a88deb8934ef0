"""What a file contained when it was read: its content hash, found once and remembered while the file is untouched.

Prepared data is cached by content, so every run hashes every data file. The hash is remembered by (path, size, times,
inode); a file changed in the last moments is hashed again, because its clock may not show a second change.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwise.errors import DataError, Problem
from shardwise.spec.run import read_json

#: File systems stamp times in ticks; within this age an unchanged time does not prove unchanged content.
SETTLED_NANOSECONDS = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class FileState:
    """A file at one moment.

    Attributes:
        path: absolute.
        mtime_ns, ctime_ns: times of the last change of content and of the entry, in nanoseconds.
        sha256: of the whole content, in hex.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str


def file_state(path: str | Path, *, label: str, memory: Path) -> FileState:
    """Hashes a file, or takes the hash from `memory` (a folder) where the file is as it was.

    Raises:
        DataError: the file cannot be read, or changes while it is hashed.
    """
    absolute = str(Path(path).resolve())
    try:
        stat = _stat(absolute)
        note = memory / f"{hashlib.sha256(absolute.encode()).hexdigest()[:32]}.json"
        known = read_json(note)
        if known is not None and {**known, "sha256": None} == {"path": absolute, **stat, "sha256": None}:
            return FileState(**known)
        state = FileState(path=absolute, **stat, sha256=sha256_of(absolute))
        if _stat(absolute) != stat:
            raise DataError(Problem(where=label, message=_CHANGED))
    except OSError as error:
        raise DataError(Problem(where=label, message=f"cannot be read: {error.strerror}")) from None
    if time.time_ns() - max(state.mtime_ns, state.ctime_ns) > SETTLED_NANOSECONDS:
        _remember(note, state)
    return state


def check_untouched(states: Sequence[FileState], *, labels: Sequence[str]) -> None:
    """Raises DataError where a file is not the one that was hashed."""
    problems: list[Problem] = []
    for state, label in zip(states, labels, strict=True):
        try:
            now = _stat(state.path)
        except OSError:
            now = {}
        if any(getattr(state, key) != now.get(key) for key in ("size", "mtime_ns", "ctime_ns", "inode")):
            problems.append(Problem(where=label, message=_CHANGED))
    if problems:
        raise DataError(problems)


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_CHANGED = "changed while it was prepared; run again once nothing writes to it"


def _stat(path: str) -> dict[str, int]:
    found = Path(path).stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino}


def _remember(note: Path, state: FileState) -> None:
    """Best effort: a cache folder that cannot be written costs time, not correctness."""
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        temporary.replace(note)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
