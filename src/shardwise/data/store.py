"""Prepared data on disk: flat arrays that every process maps into memory.

A *document* is one row as tokens. A *sample* is one sequence: a document, or with packing several. Files are
little-endian without headers; their lengths are in manifest.json:

    tokens.bin         int32  [num_tokens]         all documents, one after the other
    trained.bin        bool   [num_tokens]         whether a token is a target
    offsets.bin        int64  [num_documents + 1]  where documents begin in tokens.bin
    doc_file.bin       uint32 [num_documents]      which file a document comes from
    doc_line.bin       uint32 [num_documents]      and its line there
    sample_offsets.bin int64  [num_samples + 1]    where samples begin in sample_docs.bin
    sample_docs.bin    int64  [num_documents]      documents in the order of the samples
    lengths.bin        int32  [num_samples]        tokens of a sample
    counts.bin         int32  [num_samples]        labels of a sample that count in the loss
    sample_source.bin  uint16 [num_samples]        which source a sample comes from
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.errors import DataError
from shardwise.spec.run import read_json

VERSION = 1
IGNORED = -100
"""The label of positions that do not count, as PyTorch's cross entropy has it."""

DTYPES: dict[str, str] = {
    "tokens": "<i4",
    "trained": "?",
    "offsets": "<i8",
    "doc_file": "<u4",
    "doc_line": "<u4",
    "sample_offsets": "<i8",
    "sample_docs": "<i8",
    "lengths": "<i4",
    "counts": "<i4",
    "sample_source": "<u2",
}

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """Samples ready for training, mapped from disk. `files`: names for messages, by the numbers in `doc_file`;
    `weights`: how often the samples of each source are seen per epoch."""

    folder: Path
    arrays: Mapping[str, npt.NDArray[Any]]
    files: tuple[str, ...]
    weights: tuple[float, ...]
    packed: bool
    max_length: int

    @classmethod
    def open(cls, folder: str | Path, *, files: Sequence[str] | None = None) -> PreparedData:
        """Maps a folder of prepared data; `files` are the data files' names now, where they changed. Raises DataError:
        the folder is missing, damaged or of another version."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        paths = {name: folder / f"{name}.bin" for name in DTYPES}
        arrays = {name: np.memmap(path, DTYPES[name], mode="r").view(np.ndarray) for name, path in paths.items()}
        return cls(
            folder=folder,
            arrays=arrays,
            files=tuple(files if files is not None else manifest["files"]),
            weights=tuple(manifest["weights"]),
            packed=manifest["packed"],
            max_length=manifest["max_length"],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each sample, shape [num_samples]."""
        return self.arrays["lengths"]

    @property
    def trained_counts(self) -> npt.NDArray[np.int32]:
        """Labels of each sample that count in the loss, shape [num_samples]."""
        return self.arrays["counts"]

    @property
    def sample_sources(self) -> npt.NDArray[np.uint16]:
        """Which source each sample comes from, shape [num_samples]."""
        return self.arrays["sample_source"]

    @property
    def longest_document(self) -> int:
        """Tokens of the longest document; of rows that are not packed, of the longest row."""
        lengths = np.diff(self.arrays["offsets"]) if self.packed else self.lengths
        return int(lengths.max(initial=0))

    def documents(self, sample: int) -> Ints:
        """Numbers of the documents in a sample."""
        start, stop = self.arrays["sample_offsets"][sample : sample + 2]
        return self.arrays["sample_docs"][start:stop]

    def sample(self, index: int) -> tuple[Ints, Ints, Ints]:
        """One sample as (input_ids, position_ids, labels), int64, shape [length]. Labels are shifted: `labels[t]` is
        the token after t if that is trained, else -100. Positions restart in each document, and no label crosses into
        the next."""
        length = int(self.lengths[index])
        ids, positions, labels = (np.empty(length, np.int64) for _ in range(3))
        at = 0
        for document in self.documents(index):
            start, stop = self.arrays["offsets"][document : document + 2]
            here = slice(at, at + int(stop - start))
            ids[here] = self.arrays["tokens"][start:stop]
            positions[here] = np.arange(stop - start)
            trained = self.arrays["trained"][start + 1 : stop]
            labels[here.start : here.stop - 1] = np.where(trained, ids[here.start + 1 : here.stop], IGNORED)
            labels[here.stop - 1] = IGNORED
            at = here.stop
        return ids, positions, labels

    def longest_alone(self, rows: int) -> PreparedData:
        """As many rows, each a copy of the longest."""
        longest = int(self.lengths.argmax())
        documents = self.documents(longest)
        each = {name: np.repeat(self.arrays[name][longest], rows) for name in ("lengths", "counts", "sample_source")}
        samples = {
            "sample_docs": np.tile(documents, rows),
            "sample_offsets": np.arange(rows + 1, dtype=np.int64) * len(documents),
        }
        return replace(self, arrays={**self.arrays, **each, **samples}, weights=(1.0,) * len(self.weights))

    def where(self, index: int) -> str:
        """`file:line` of a sample's first row."""
        document = self.documents(index)[0]
        return f"{self.files[self.arrays['doc_file'][document]]}:{self.arrays['doc_line'][document]}"


def open_prepared(described: Mapping[str, Any]) -> PreparedData:
    """The `train` or `eval` part of data.json, its files called as they are now."""
    return PreparedData.open(described["folder"], files=described["files"])


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json of prepared data whose files are there and as long as they were. Raises DataError: they are not."""
    manifest = read_json(folder / "manifest.json")
    if not folder.is_dir():
        message = (
            f"is not there on {socket.gethostname()}; run shardwise train again to prepare it, and on several nodes "
            "set SHARDWISE_CACHE to a folder on a disk that all of them share"
        )
        raise DataError.at(folder, message)
    if manifest is None or manifest.get("version") != VERSION:
        message = f"is not prepared data of version {VERSION}; run shardwise train again to prepare it"
        raise DataError.at(folder, message)
    for name, size in manifest["sizes"].items():
        path = folder / f"{name}.bin"
        if not path.is_file() or path.stat().st_size != size:
            message = "is damaged: a file is missing or cut short; run shardwise train again to prepare it anew"
            raise DataError.at(folder, message)
    return manifest
