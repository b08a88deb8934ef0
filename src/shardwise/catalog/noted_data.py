"""What was counted of a job's data, found again by paths, sizes and times of change."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast

from shardwise.catalog.hub import repository_folder, tokenizer_files
from shardwise.catalog.models import hub_id
from shardwise.spec.data_facts import DataFacts, PartFacts, RowLengths
from shardwise.spec.job.keys import Job
from shardwise.spec.run import cache_root, read_json, write_json

#: Raised whenever what is noted, or what rows become, changes.
VERSION = 1
#: Keys of `data` by which rows are cut, dropped, set aside and put together, once their tokens are
#: counted.
_LATER = ("max_length", "packing", "over_long", "eval_fraction")
#: And those that have no part in either.
_NO_PART = ("shuffle", "num_rows")


@dataclass(frozen=True, kw_only=True)
class NotedData:
    """`folder`: the prepared data; None where it was prepared with another `max_length` or the
    like, so that rows that are used are reckoned from lengths, or where it was refused."""

    facts: DataFacts
    folder: Path | None


def note_data(job: Job, *, counts: Mapping[int, int], data_json: Mapping[str, Any], sampled: bool = False) -> None:
    """Keeps what was counted. `counts`: {tokens: rows} of `data.path`, before any is cut or
    dropped. `sampled`: from the lengths of some; it is read where nothing else is noted."""
    later = None if sampled else _later(job)
    noted = {"version": VERSION, "later": later, "counts": sorted(counts.items()), "data": dict(data_json)}
    with suppress(OSError):  # a cache that cannot be written is said where data is prepared
        write_json(_file(job, sampled=sampled), noted)


def noted_data(job: Job) -> NotedData | None:
    """What is known of a job's data as it lies there now; None where nothing is."""
    noted = (read_json(_file(job)) or read_json(_file(job, sampled=True))) if job.data.path else None
    if noted is None or noted.get("version") != VERSION:
        return None
    data = cast(dict[str, Any], noted.get("data"))
    facts = DataFacts.read(data)
    if facts is None:
        return None
    if noted.get("later") == _later(job):
        folder = data["train"].get("folder")
        return NotedData(facts=facts, folder=Path(folder) if folder else None)
    return NotedData(facts=_reckoned(facts, dict(noted["counts"]), job), folder=None)


def _reckoned(facts: DataFacts, counts: Mapping[int, int], job: Job) -> DataFacts:
    """With rows and tokens by lengths alone: as they would be cut, dropped, set aside, packed."""
    data, most = job.data, job.data.max_length
    packs = data.packing and job.objective == "sft"  # of preferences a step has as many rows
    kept = [(min(length, most), rows) for length, rows in counts.items() if length <= most or data.over_long != "drop"]
    share = 1 - data.eval_fraction
    rows, tokens = (round(share * total) for total in (sum(n for _, n in kept), sum(a * n for a, n in kept)))
    part = PartFacts(
        sources=facts.train.sources,
        num_rows=rows,
        num_samples=ceil(tokens / most) if packs else rows,
        num_tokens=tokens * job.sides,
        sides=job.sides,
        longest=most if packs else max((length for length, _ in kept), default=0),
    )
    return replace(
        facts,
        train=part,
        eval=None,
        lengths=RowLengths.of(counts, max_length=most),
        over_long=data.over_long,
        packing=bool(data.packing),
    )


def _later(job: Job) -> dict[str, Any]:
    seed = job.train.seed if job.data.eval_fraction else None
    return {**{name: getattr(job.data, name) for name in _LATER}, "eval_seed": seed}


def _file(job: Job, *, sampled: bool = False) -> Path:
    """Named by everything that decides what a row's tokens are."""
    paths = [Path(source.path) for source in (*job.data.path, *job.data.eval_path)]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    template = [Path(job.data.chat_template)] if job.data.chat_template else []
    keys = {key: value for key, value in job.data.model_dump(mode="json").items() if key not in (*_LATER, *_NO_PART)}
    state = {"data": keys, "files": _states([*files, *template, *_tokenizer(job.model)]), "model": job.model}
    if job.objective != "sft":
        state["rows"] = "labelled" if job.sides == 1 else "pairs"
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    return cache_root() / "noted" / f"{digest}{'-sampled' * sampled}.json"


def _states(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """(absolute path, size, time of change) of each file that is there."""
    found: list[tuple[str, int, int]] = []
    for file in files:
        with suppress(OSError):
            stat = file.stat()
            if S_ISREG(stat.st_mode):
                found.append((str(file.absolute()), stat.st_size, stat.st_mtime_ns))
    return found


def _tokenizer(model: str) -> list[Path]:
    """Its files; of a model on the hub the one that says which revision is here."""
    local = Path(model)
    folder = local.parent if local.is_file() else local
    if folder.is_dir():
        return [*tokenizer_files(folder), folder / "config.json"]
    return [repository_folder(hub_id(model)) / "refs" / "main"]
