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
from shardwise.data.workers.pool import WorkerLimits
from shardwise.data.workers.tokens import Tokens
from shardwise.errors import DataError
from shardwise.spec.job.places import write_places
from shardwise.spec.run import RunDirectory


def store(
    folder: Path,
    lengths: Sequence[int],
    *,
    sources: Sequence[int] | None = None,
    weights: Sequence[float] = (1.0,),
    packed: bool = False,
    max_length: int = 64,
) -> PreparedData:
    """Document d holds the ids 1000 d + 1, 1000 d + 2, ...; half of it is trained."""
    source_of = list(sources) if sources is not None else [0] * len(lengths)
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
    write_store(folder, documents, files=names, weights=weights, packed=packed, max_length=max_length)
    return PreparedData.open(folder)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_directory(folder: Path, *, model: Path, data: Mapping[str, Any], seed: int = 42) -> RunDirectory:
    folder.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(folder)
    run.resolved.write_text(json.dumps({"model": str(model), "data": dict(data), "train": {"seed": seed}}))
    return run


def refused(
    folder: Path, *, model: Path, data: Mapping[str, Any], places: Mapping[str, str] | None = None, **options: Any
) -> DataError:
    """What a preparation says that is refused; `places` are those of the job's keys."""
    run = run_directory(folder, model=model, data=data)
    if places is not None:
        write_places(run, dict(places))
    with pytest.raises(DataError) as caught:
        prepare(run, num_workers=options.pop("workers", 1), **options)
    return caught.value


def prepared(
    folder: Path,
    *,
    model: Path,
    data: Mapping[str, Any],
    seed: int = 42,
    limits: WorkerLimits | None = None,
    workers: int = 1,
) -> dict[str, Any]:
    """data.json of a whole preparation in this process, with real workers."""
    run = run_directory(folder, model=model, data=data, seed=seed)
    return prepare(run, limits=limits, num_workers=workers)
