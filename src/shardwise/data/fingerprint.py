"""The content hash of a data file, and whether the file is still the one that was hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import DataError, Problem


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


def file_state(path: str | Path, *, label: str) -> FileState:
    """Hashes a file.

    Raises:
        DataError: the file cannot be read, or changes while it is hashed.
    """
    absolute = str(Path(path).resolve())
    try:
        stat = _stat(absolute)
        state = FileState(path=absolute, **stat, sha256=sha256_of(absolute))
        if _stat(absolute) != stat:
            raise DataError(Problem(where=label, message=_CHANGED))
    except OSError as error:
        raise DataError(Problem(where=label, message=f"cannot be read: {error.strerror}")) from None
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
