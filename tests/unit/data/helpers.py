"""Prepared data made in memory, and whole preparations of rows written for a test."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.data.prepare.build import Shard, ShardWriter, copy_tokens, gather, write_store
from shardwise.data.prepare.prepare import prepare
from shardwise.data.store import PreparedData
from shardwise.data.workers.tokens import Tokens
from shardwise.errors import DataError
from shardwise.spec.job.places import write_places
from shardwise.spec.run import RunDirectory, write_json


def _template(path: Path) -> str:
    """Its lines are broken for the eye alone, and a comment is about it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(line.strip() for line in lines if not line.startswith("{#"))


#: Chat templates in the manner of the families: their structure, in words of our own.
TEMPLATES = {path.stem.upper(): _template(path) for path in (Path(__file__).parent / "templates").glob("*.jinja")}


def store(folder: Path, lengths: Sequence[int], *, sources=(), weights=(1.0,), **rows: Any) -> PreparedData:
    """Documents of these lengths; document d has ids from 1000 d + 1 on; half of it is trained."""
    source_of = list(sources) or [0] * len(lengths)
    shards = []
    folder.mkdir(parents=True, exist_ok=True)
    for document, length in enumerate(lengths):
        ids = 1000 * document + 1 + np.arange(length, dtype=np.int32)
        tokens = Tokens(ids=ids, trained=np.arange(length) >= length // 2)
        with ShardWriter(folder / f"shard-{document}") as writer:
            writer.append([(document + 1, tokens)])
        shards.append(Shard(stem=folder / f"shard-{document}", file=source_of[document]))
    documents = gather(shards, source_of_file=list(range(len(weights))))
    copy_tokens(shards, np.zeros(len(documents), bool), train=folder, evaluation=folder)
    names = tuple(f"source-{index}.jsonl" for index in range(len(weights)))
    write_store(folder, documents, files=names, weights=weights, **{"packed": False, "max_length": 64, **rows})
    return PreparedData.open(folder)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_directory(folder: Path, *, model: Path, data: Mapping[str, Any], seed=42, objective="sft") -> RunDirectory:
    job = {"model": str(model), "objective": objective, "data": dict(data), "train": {"seed": seed}}
    write_json(RunDirectory(folder).resolved, job)
    return RunDirectory(folder)


def refused(folder: Path, *, model: Path, data: Mapping[str, Any], places=None, **options: Any) -> DataError:
    """What a preparation says that is refused; `places` are those of the job's keys."""
    run = run_directory(folder, model=model, data=data)
    if places is not None:
        write_places(run, dict(places))
    with pytest.raises(DataError) as caught:
        prepare(run, num_workers=options.pop("workers", 1), **options)
    return caught.value


def prepared(folder: Path, *, model: Path, data: Mapping[str, Any], workers=1, **job: Any) -> dict[str, Any]:
    """data.json of a whole preparation in this process, with real workers."""
    return prepare(run_directory(folder, model=model, data=data, **job), num_workers=workers)
