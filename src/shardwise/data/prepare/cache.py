"""The cache of prepared data: its key, its place, and entries that appear by one rename.

    <root>/data/<key>/         train/, eval/ and summary.json; complete, or not there
    <root>/data/<key>.partial  being written, by the holder of <key>.lock
    <root>/hub/                fetched data sets

The key hashes the content of data files and tokenizer and the settings that shape tokens, not names
of files.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.catalog.hub import tokenizer_files
from shardwise.data.read.sources import Source, collected
from shardwise.errors import DataError, Problem
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places
from shardwise.spec.run import sync_folder


@dataclass(frozen=True, kw_only=True)
class FileState:
    """A file at one moment: its absolute path, size, time of change, and hash."""

    path: str
    size: int
    mtime_ns: int
    sha256: str

    @property
    def changed(self) -> bool:
        """Whether it is no longer the file that was hashed, or was not while it was hashed."""
        try:
            now = Path(self.path).stat()
        except OSError:
            return True
        return (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns)


def file_state(path: str | Path, *, label: str) -> FileState:
    """Hashes a file. Raises DataError: the file cannot be read."""
    absolute = str(Path(path).resolve())
    try:
        stat = Path(absolute).stat()
        return FileState(path=absolute, size=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=sha256_of(absolute))
    except OSError as error:
        raise DataError.at(label, f"cannot be read: {error.strerror}") from None


def check_untouched(states: Sequence[FileState], *, labels: Sequence[str]) -> None:
    """Raises DataError where a file is not the one that was hashed."""
    message = "changed while it was prepared; run again once nothing writes to it"
    both = zip(states, labels, strict=True)
    if problems := [Problem(where=label, message=message) for state, label in both if state.changed]:
        raise DataError(problems)


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


#: Raised whenever the meaning or the layout of prepared data changes.
FORMAT_VERSION = 7


def source_states(sources: Sequence[Source], *, places: Places) -> tuple[FileState, ...]:
    """The content of every file of every source. Raises DataError: some cannot be read."""
    states: list[FileState] = []
    problems: list[Problem] = []
    for source in sources:
        for file in source.files:
            with collected(problems), places.blaming(*source.key):
                states.append(file_state(file.path, label=file.label))
    if problems:
        raise DataError(problems)
    return tuple(states)


def tokenizer_hashes(folder: Path) -> dict[str, str]:
    """Content hash of each file that decides how text becomes ids, config.json among them."""
    files = (*tokenizer_files(folder), folder / "config.json")
    return {str(path.relative_to(folder)): sha256_of(path) for path in files if path.is_file()}


#: Keys of `data` that shape the tokens.
_SHAPING = ("columns", "max_length", "packing", "train_on", "over_long", "rendered", "eval_fraction")


def cache_key(
    job: Job,
    *,
    sources: Sequence[Source],
    num_train: int,
    states: Sequence[FileState],
    tokenizer: dict[str, str],
    template: str | None,
) -> str:
    """SHA-256, in hex, of what shapes the data; the first `num_train` sources are trained on."""
    data, of_files = job.data, iter(states)
    contents = [_content(source, of_files) for source in sources]
    described = {
        "version": FORMAT_VERSION,
        "libraries": {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")},
        "train": contents[:num_train],
        "eval": contents[num_train:],
        "tokenizer": tokenizer,
        "template": template,
        **{name: getattr(data, name) for name in _SHAPING},
        "eval_seed": job.train.seed if data.eval_fraction else None,
        **({} if job.objective == "sft" else {"rows": "labelled" if job.sides == 1 else "pairs"}),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _content(source: Source, states: Iterator[FileState]) -> dict[str, Any]:
    files = [(file.kind, next(states).sha256) for file in source.files]
    return {"files": files, "format": source.format, "weight": source.weight}


@contextmanager
def one_at_a_time(entry: Path) -> Iterator[None]:
    """Holds the entry's lock: of several runs on a machine one prepares and the others wait."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with entry.with_name(f"{entry.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def new_entry(entry: Path) -> Iterator[Path]:
    """An empty folder that becomes the entry when the block ends without error."""
    partial = entry.with_name(f"{entry.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one, or it would have been used
        partial.rename(entry)
        sync_folder(entry.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
