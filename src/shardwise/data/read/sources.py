"""Which files `data.path` and `data.eval_path` mean: files, folders, hub ids."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
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
    ".feather": "arrow",
    ".txt": "txt",
}

#: Of typed columns, in groups of rows.
COLUMNAR: tuple[Kind, ...] = ("parquet", "arrow")

#: Suffixes of compressed files -> what unpacks them.
_PACKED = {".gz": "gunzip", ".zst": "unzstd", ".bz2": "bunzip2", ".xz": "unxz", ".zip": "unzip"}
#: What `datasets` and the hub write beside rows.
_METADATA = re.compile(r"(dataset_infos?|dataset_dict|state|config)\.json|cache-\w+\.arrow")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of rows; `label` is the path as the user would write it."""

    path: str
    label: str
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Source:
    """One entry of `data.path`. `num_ignored`: files of a folder that hold no rows."""

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
    """The files behind each entry of `data.KEY`; hub ids go through `fetch`. Raises DataError: one
    problem per path that is missing, of unknown kind or an empty folder, at its place."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for index, spec in enumerate(specs):
        with collected(problems), places.blaming("data", key, index):
            sources.append(_find(spec, fetch, key=("data", key, index)))
    if problems:
        raise DataError(problems)
    return tuple(sources)


@contextmanager
def collected(problems: list[Problem]) -> Generator[None]:
    """What is wrong inside joins the `problems`, to be raised with others."""
    try:
        yield
    except DataError as error:
        problems += error.problems


def _find(spec: SourceSpec, fetch: Fetch, *, key: Key) -> Source:
    path = Path(spec.path)
    note, ignored = "", 0
    if path.is_dir():
        _refuse_several_sets(path, label=spec.path)
        files, ignored = _files_of_folder(path, label=spec.path)
        files, num_nameless, note = _of_split(files, spec, folder=path)
        ignored += num_nameless
    elif path.exists():
        files = (_single_file(path, label=spec.path),)
    elif path.suffix.lower() not in KINDS and is_hub_id(spec.path):
        fetched, note = fetch(spec)
        files = (SourceFile(path=str(fetched), label=spec.path, kind="parquet"),)
    else:
        unread = ", and patterns are not read: name the folder, or a list of files" if {*"*?["} & {*spec.path} else ""
        raise DataError.at(spec.path, f"there is no such file or folder{unread}")
    if path.exists() and spec.name is not None:
        said = f"name: {spec.name} chooses a configuration of a hub data set, but this is a local path; remove it"
        raise DataError.at(spec.path, said)
    if path.is_file() and spec.split != "train":
        raise DataError.at(spec.path, f"split: {spec.split} chooses among files, but this is one file; remove it")
    return Source(
        label=spec.path, key=key, weight=spec.weight, format=spec.format, files=files, num_ignored=ignored, note=note
    )


def _single_file(path: Path, *, label: str) -> SourceFile:
    kind = KINDS.get(path.suffix.lower())
    if not path.is_file():
        raise DataError.at(label, "is not a regular file; rows are read from files and folders")
    if path.suffix.lower() in _PACKED:
        raise DataError.at(label, f"is compressed; unpack it first ({_PACKED[path.suffix.lower()]})")
    if kind is None:
        raise DataError.at(label, f"is of an unknown kind; expected a name that ends in {', '.join(KINDS)}")
    return SourceFile(path=str(path.resolve()), label=label, kind=kind)


def _refuse_several_sets(folder: Path, *, label: str) -> None:
    """Raises DataError where a clone of the hub's has several configurations, by its README.md."""
    card = folder / "README.md"
    if not card.is_file():
        return
    head = re.match(r"---\n.*?\n---", card.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    names = dict.fromkeys(re.findall(r"^\s*-?\s*config_name: *(.+)", head[0] if head else "", re.MULTILINE))
    if len(names) > 1:
        several = f"holds several data sets, as its README.md says: {', '.join(names)}"
        raise DataError.at(label, f"{several}; name the folder or the files of one")


def _files_of_folder(folder: Path, *, label: str) -> tuple[tuple[SourceFile, ...], int]:
    """Files of known kinds in the folder and below, by name; and how many others."""
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
    known = [path for path in found if _holds_rows(path)]
    tables = [path for path in known if path.suffix.lower() != ".txt"]
    known = [path for path in known if path.stat().st_size]  # an empty text is no document
    known = tables or known  # beside rows, a text file is a licence or a note
    if not known:
        raise DataError.at(label, f"is a folder without rows; expected files that end in {', '.join(KINDS)}")
    return tuple(_single_file(path, label=str(path)) for path in known), len(found) - len(known)


def _holds_rows(path: Path) -> bool:
    """By its name; of a compressed file by the one beneath: an archive of pictures holds none."""
    name = Path(path.stem) if path.suffix.lower() in _PACKED else path
    return name.suffix.lower() in KINDS and not _METADATA.fullmatch(path.name)


#: Words in names of files and folders -> the split, as `datasets` reads them.
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_SHARD = re.compile(r"data/(.+)-\d{5}-of-\d{5}.*")


def _of_split(
    files: tuple[SourceFile, ...], spec: SourceSpec, *, folder: Path
) -> tuple[tuple[SourceFile, ...], int, str]:
    """Of a folder's files those of the asked split, by their names, how many are of none, and what
    to say; all of them where no name speaks of one. Raises DataError: there is no such split."""
    by_split: dict[str, list[SourceFile]] = {}
    for file in files:
        by_split.setdefault(_split_of(Path(file.label).relative_to(folder), label=file.label), []).append(file)
    nameless = by_split.pop("", [])
    split = spec.split if spec.split in by_split else _WORDS.get(spec.split, spec.split)
    if split == "train" and len(by_split) < 2 and not set(by_split) & set(_WORDS.values()):
        return files, 0, ""
    if split == "train" and split not in by_split and nameless:
        by_split[split], nameless = nameless, []
    others = ", ".join(name for name in by_split if name != split)
    if split not in by_split:
        there = f"its files are of {others}: name one of these" if others else "no name of a file has one"
        raise DataError.at(spec.path, f"has no files of the split {spec.split}; {there}")
    offer = f"To evaluate on one: eval_path: {{path: {spec.path}, split: {others.split(', ')[0]}}}"
    note = f"split {split}, by the names of files; not read: {others}. {offer}" if others else ""
    return tuple(by_split[split]), len(nameless), note


def _split_of(path: Path, *, label: str) -> str:
    """The split that the names of a file's folders speak of, else its own name; "" for none."""
    if shard := _SHARD.fullmatch(path.as_posix()):
        return shard[1]
    for names in (path.parent.as_posix(), path.name):
        found = {_WORDS[word] for word in re.split(r"[-._ 0-9/]+", names.lower()) if word in _WORDS}
        if len(found) > 1:
            both = " and ".join(sorted(found))
            raise DataError.at(label, f"its name speaks of the splits {both}; rename it, or name files one by one")
        if found:
            return found.pop()
    return ""
