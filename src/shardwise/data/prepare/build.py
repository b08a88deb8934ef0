"""Joins the workers' shards into prepared data: evaluation split, packing, flat files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from shardwise.data import order
from shardwise.data.order import pack
from shardwise.data.store import DTYPES, OPTIONAL, VERSION
from shardwise.data.workers.pool import Pool
from shardwise.data.workers.tokens import Tokens
from shardwise.spec.run import sync_folder, write_json

#: One record per kept row: where it stood, how long it is, how many labels count.
ROW = np.dtype([("line", "<u4"), ("length", "<i4"), ("trained", "<i4"), ("was_truncated", "?"), ("label", "?")])
#: A document: its `ROW`, and the file and source that it comes from. Tokens stay on disk.
DOCUMENT = np.dtype([*ROW.descr, ("file", "<u4"), ("source", "<u2")])
Documents = npt.NDArray[np.void]


def each(shards: Sequence[Shard], values: npt.NDArray[Any]) -> Iterator[tuple[Shard, Documents, npt.NDArray[Any]]]:
    """Each shard with its `ROW`s and its part of one value per document."""
    at = 0
    for shard in shards:
        rows = shard.rows()
        yield shard, rows, values[at : at + len(rows)]
        at += len(rows)


def gather(shards: Sequence[Shard], *, source_of_file: Sequence[int]) -> Documents:
    """All shards' documents in order, as records of `DOCUMENT`."""
    documents = np.empty(sum(shard.num_rows for shard in shards), DOCUMENT)
    for shard, rows, part in each(shards, documents):
        for name in ROW.names or ():
            part[name] = rows[name]
        part["file"], part["source"] = shard.file, source_of_file[shard.file]
    return documents


def evaluation_rows(documents: int, *, fraction: float, seed: int, sides: int = 1) -> npt.NDArray[np.bool_]:
    """Which documents are set aside: a fraction of the rows, at least one, by the seed."""
    count = documents // sides
    chosen = np.zeros(count, bool)
    if fraction and count:
        chosen[order.permutation(count, seed, order.EVALUATION)[: max(1, round(fraction * count))]] = True
    return chosen.repeat(sides)


def copy_tokens(shards: Sequence[Shard], chosen: npt.NDArray[np.bool_], *, train: Path, evaluation: Path) -> None:
    """Appends each shard's tokens to the folder its documents belong to, and deletes the shard."""
    for shard, rows, evaluated in each(shards, chosen):
        by_token = np.repeat(evaluated, rows["length"])
        for name, values in (("tokens", shard.tokens()), ("trained", shard.trained())):
            for folder, part in ((train, values[~by_token]), (evaluation, values[by_token])):
                if folder == train or len(part):
                    with (folder / f"{name}.bin").open("ab") as file:
                        put(part, file)
        shard.delete()


def write_store(
    folder: Path,
    documents: Documents,
    *,
    files: Sequence[str],
    weights: Sequence[float],
    packed: bool,
    max_length: int,
    sides: int = 1,
    labelled: bool = False,
) -> dict[str, Any]:
    """Writes all but the tokens, which `copy_tokens` has put there; returns the manifest. `sides`:
    documents of a sample that is no packed one; `labelled`: each says whether it is good."""
    lengths = documents["length"]
    capacity = max_length if packed and sides == 1 and not labelled else None
    sample_offsets, sample_docs = _samples(documents, num_sources=len(weights), capacity=capacity, sides=sides)
    trained = documents["trained"]
    of_sample = np.add if sides == 1 else np.maximum  # sides are rows of their own
    arrays = {
        "offsets": np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        "doc_file": documents["file"],
        "doc_line": documents["line"],
        "sample_offsets": sample_offsets,
        "sample_docs": sample_docs,
        "lengths": of_sample.reduceat(lengths[sample_docs], sample_offsets[:-1]),
        "counts": np.add.reduceat(trained[sample_docs], sample_offsets[:-1]),
        "sample_source": documents["source"][sample_docs[sample_offsets[:-1]]],
    }
    if labelled:
        arrays["doc_label"] = documents["label"]
    for name, values in arrays.items():
        with (folder / f"{name}.bin").open("wb") as file:
            put(values.astype((DTYPES | OPTIONAL)[name], copy=False), file)
    names = {*arrays, "tokens", "trained"}
    manifest = {
        "version": VERSION,
        "num_rows": len(documents) // sides,
        "num_samples": len(arrays["lengths"]),
        "num_tokens": int(arrays["offsets"][-1]),
        "num_trained_tokens": int(trained.sum(dtype=np.int64)),
        "longest": int(arrays["lengths"].max()),
        "num_truncated": int(np.count_nonzero(documents["was_truncated"].reshape(-1, sides).any(1))),
        "files": list(files),
        "weights": list(weights),
        "packed": packed,
        "max_length": max_length,
        **({"sides": sides} if sides > 1 else {}),
        "sizes": {name: (folder / f"{name}.bin").stat().st_size for name in (*DTYPES, *OPTIONAL) if name in names},
    }
    for name in manifest["sizes"]:
        with (folder / f"{name}.bin").open("rb") as file:
            os.fsync(file.fileno())
    write_json(folder / "manifest.json", manifest)
    sync_folder(folder)
    return manifest


def _samples(
    documents: Documents, *, num_sources: int, capacity: int | None, sides: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(offsets, documents). A pack never mixes sources: weights act on packs."""
    count = len(documents)
    if capacity is None:
        return np.arange(0, count + 1, sides), np.arange(count)
    counts, members = [np.zeros(1, np.int64)], []
    for source in range(num_sources):
        ids = np.flatnonzero(documents["source"] == source)
        offsets, packed = pack(documents["length"][ids], capacity=capacity)
        counts.append(np.diff(offsets))
        members.append(ids[packed])
    return np.cumsum(np.concatenate(counts)), np.concatenate(members)


def put(values: npt.NDArray[Any], file: IO[bytes]) -> None:
    """Writes an array. NumPy's `tofile` raises nothing where a full disk lacks the last 4 KiB."""
    file.write(np.ascontiguousarray(values).view(np.uint8).data)


_SUFFIXES = (".tokens", ".trained", ".rows")


class ShardWriter:
    """Appends rows to `<stem>.tokens` (int32), `<stem>.trained` (bool) and `<stem>.rows` (ROW)."""

    def __init__(self, stem: Path) -> None:
        self._files = [stem.with_suffix(suffix).open("wb") for suffix in _SUFFIXES]

    def append(self, rows: list[tuple[int, Tokens]]) -> None:
        """Rows as (line, tokens)."""
        tokens, trained, records = self._files
        if rows:
            put(np.concatenate([row.ids for _, row in rows]).astype("<i4", copy=False), tokens)
            put(np.concatenate([row.trained for _, row in rows]), trained)
        facts = [(line, len(row.ids), row.num_trained, row.was_truncated, row.label) for line, row in rows]
        put(np.array(facts, ROW), records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one chunk became, on disk."""

    stem: Path
    file: int

    @property
    def num_rows(self) -> int:
        """How many it kept."""
        return self.stem.with_suffix(".rows").stat().st_size // ROW.itemsize

    def rows(self) -> npt.NDArray[np.void]:
        """Records of `ROW`, one per kept row."""
        return np.fromfile(self.stem.with_suffix(".rows"), ROW)

    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids of all rows, one after the other."""
        return np.fromfile(self.stem.with_suffix(".tokens"), "<i4")

    def trained(self) -> npt.NDArray[np.bool_]:
        """The mask of trained tokens, like `tokens`."""
        return np.fromfile(self.stem.with_suffix(".trained"), np.bool_)

    def delete(self) -> None:
        """Frees the disk once the rows stand elsewhere."""
        for suffix in _SUFFIXES:
            self.stem.with_suffix(suffix).unlink()


PREVIEW_ROWS = 3
PREVIEW_TOKENS = 512


def preview(pool: Pool, shards: Sequence[Shard], *, source_of_file: Sequence[int]) -> list[dict[str, Any]]:
    """The first rows: file, line, and the text as (piece, whether it is trained)."""
    firsts: dict[int, list[tuple[Shard, int]]] = {}
    for shard in shards:
        found = firsts.setdefault(source_of_file[shard.file], [])
        if len(found) < PREVIEW_ROWS:
            found += [(shard, row) for row in range(min(len(shard.rows()), PREVIEW_ROWS - len(found)))]
    in_turns = [found[turn] for turn in range(PREVIEW_ROWS) for found in firsts.values() if turn < len(found)]
    return [_shown(pool, shard, row) for shard, row in in_turns[:PREVIEW_ROWS]]


def _shown(pool: Pool, shard: Shard, row: int) -> dict[str, Any]:
    rows = shard.rows()
    start, stop = (int(rows["length"][:end].sum()) for end in (row, row + 1))
    trained, half = shard.trained()[start:stop], PREVIEW_TOKENS // 2
    trained[0] = False
    cut = [half, stop - start - half] if stop - start > PREVIEW_TOKENS else []
    edges = sorted({0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), *cut, stop - start})
    spans = [(a, b) for a, b in pairwise(edges) if not cut or b <= cut[0] or a >= cut[1]]
    ids = shard.tokens()[start:stop]
    texts = pool.ask({"do": "decode", "pieces": [ids[a:b].tolist() for a, b in spans]}, name="the preview")["texts"]
    text = [[piece, bool(trained[a])] for piece, (a, _) in zip(texts, spans, strict=True)]
    if cut:
        text.insert(
            next(n for n, (a, _) in enumerate(spans) if a >= cut[1]), [f" [{cut[1] - cut[0]:,} tokens] ", False]
        )
    return {"file": shard.file, "line": int(rows["line"][row]), "row": row, "text": text}
