"""Which files a job's `data.path` and `data.eval_path` mean: single files, folders of files, hub ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwise.catalog.hub import is_hub_id
from shardwise.errors import DataError, Problem
from shardwise.spec.job.data import RowFormat, SourceSpec
from shardwise.spec.job.places import Key, Places

Kind = Literal["jsonl", "json", "csv", "tsv", "ssv", "parquet", "arrow", "txt"]

KINDS: dict[str, Kind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "txt",
}

#: Of typed columns, in groups of rows.
COLUMNAR: tuple[Kind, ...] = ("parquet", "arrow")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of rows; `label` is the path as the user would write it."""

    path: str
    label: str
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Source:
    """One entry of `data.path`. `num_ignored`: files of a folder that hold no rows, by their suffix."""

    label: str
    key: Key
    weight: float
    format: RowFormat
    files: tuple[SourceFile, ...]
    num_ignored: int = 0
    note: str = ""


#: Fetches a hub data set and says where it lies and what to tell the user.
Fetch = Callable[[SourceSpec], tuple[Path, str]]


def find_sources(specs: Sequence[SourceSpec], *, fetch: Fetch, key: str, places: Places) -> tuple[Source, ...]:
    """The files behind each entry of `data.KEY`; hub ids go through `fetch`. Raises DataError: one problem per path
    that is missing, of an unknown kind or an empty folder, at its place in the job."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        try:
            with places.blaming("data", key, index):
                sources.append(_find(spec, fetch, key=("data", key, index)))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return tuple(sources)


def _find(spec: SourceSpec, fetch: Fetch, *, key: Key) -> Source:
    path = Path(spec.path).expanduser()
    note, ignored = "", 0
    if path.is_dir():
        files, ignored = _files_of_folder(path, label=spec.path)
    elif path.exists():
        files = (_single_file(path, label=spec.path),)
    elif path.suffix.lower() not in KINDS and is_hub_id(spec.path):
        fetched, note = fetch(spec)
        files = (SourceFile(path=str(fetched), label=spec.path, kind="parquet"),)
    else:
        raise DataError.at(spec.path, "there is no such file or folder")
    if path.exists():
        _refuse_hub_keys(spec)
    return Source(
        label=spec.path, key=key, weight=spec.weight, format=spec.format, files=files, num_ignored=ignored, note=note
    )


def _refuse_hub_keys(spec: SourceSpec) -> None:
    """Raises DataError where a local path has keys that only a hub data set has."""
    said = f"name: {spec.name} chooses a configuration" if spec.name is not None else ""
    if spec.split != "train":
        said = f"split: {spec.split} chooses a split"
    if said:
        raise DataError.at(spec.path, f"{said} of a hub data set, but this is a local path; remove it")


def _single_file(path: Path, *, label: str) -> SourceFile:
    kind = KINDS.get(path.suffix.lower())
    if not path.is_file():
        raise DataError.at(label, "is not a regular file; rows are read from files and folders")
    if kind is None:
        raise DataError.at(label, f"is of an unknown kind; expected a name that ends in {', '.join(KINDS)}")
    return SourceFile(path=str(path.resolve()), label=label, kind=kind)


def _files_of_folder(folder: Path, *, label: str) -> tuple[tuple[SourceFile, ...], int]:
    """Files of known kinds in the folder and below, in the order of their names; and how many others there are."""
    visible = (path for path in folder.rglob("[!.]*") if path.is_file())
    found = sorted(path for path in visible if not any(p.startswith(".") for p in path.relative_to(folder).parts))
    home = folder.resolve()
    problems = [
        Problem(where=str(path), message=f"is a link that leaves {label}; put the file itself there")
        for path in found
        if not path.resolve().is_relative_to(home)
    ]
    if problems:
        raise DataError(problems)
    known = [path for path in found if path.suffix.lower() in KINDS]
    tables = [path for path in known if path.suffix.lower() != ".txt"]
    known = [path for path in known if path.stat().st_size]  # an empty text is no document
    known = tables or known  # beside rows, a text file is a licence or a note
    if not known:
        raise DataError.at(label, f"is a folder without rows; expected files that end in {', '.join(KINDS)}")
    return tuple(_single_file(path, label=str(path)) for path in known), len(found) - len(known)
