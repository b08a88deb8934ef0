"""Prepared data on disk: flat arrays that every process maps into memory.

A *document* is one row as tokens. A *sample* is one sequence: a document, or with packing several.
Files are little-endian without headers; their lengths are in manifest.json:

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
    doc_label.bin      bool   [num_documents]      whether rows say that a document is a good answer

A sample of preferences is a pair, two documents that are rows of their own, chosen and rejected:
its length is that of the longer one.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

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

#: What is there where rows have it.
OPTIONAL: dict[str, str] = {"doc_label": "?"}

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """Samples on disk. `files`: by `doc_file`; `weights`: of sources; `sides`: rows of a sample."""

    folder: Path
    arrays: Mapping[str, npt.NDArray[Any]]
    files: tuple[str, ...]
    weights: tuple[float, ...]
    packed: bool
    max_length: int
    sides: int = 1

    @classmethod
    def open(cls, folder: str | Path, *, files: Sequence[str] | None = None) -> Self:
        """Maps a folder of prepared data; `files` are the data files' names now, where they
        changed. Raises DataError: the folder is missing, damaged or of another version."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        kinds = {name: kind for name, kind in (DTYPES | OPTIONAL).items() if name in manifest["sizes"]}
        arrays = {
            name: np.memmap(folder / f"{name}.bin", kind, mode="r").view(np.ndarray) for name, kind in kinds.items()
        }
        return cls(
            folder=folder,
            arrays=arrays,
            files=tuple(files if files is not None else manifest["files"]),
            weights=tuple(manifest["weights"]),
            packed=manifest["packed"],
            max_length=manifest["max_length"],
            sides=manifest.get("sides", 1),
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
        return int((np.diff(self.arrays["offsets"]) if self.packed else self.lengths).max(initial=0))

    def documents(self, sample: int) -> Ints:
        """Numbers of the documents in a sample."""
        start, stop = self.arrays["sample_offsets"][sample : sample + 2]
        return self.arrays["sample_docs"][start:stop]

    def tokens_of(self, samples: Ints) -> int:
        """Tokens of some samples, of all their sides."""
        if self.sides == 1:
            return int(self.lengths[samples].sum(dtype=np.int64))
        offsets, first = self.arrays["offsets"], self.arrays["sample_offsets"][samples]
        documents = self.arrays["sample_docs"][first[:, None] + np.arange(self.sides)]
        return int((offsets[documents + 1] - offsets[documents]).sum())

    @property
    def joined(self) -> bool:
        """Whether rows are packed as micro-batches are made: those of preferences."""
        return self.packed and (self.sides > 1 or "doc_label" in self.arrays)

    def row_lengths(self, index: int) -> Ints:
        """Tokens of each row of a sample of preferences."""
        offsets, documents = self.arrays["offsets"], self.documents(index)
        return offsets[documents + 1] - offsets[documents]

    def rows(self, index: int) -> list[tuple[Ints, Ints, Ints]]:
        """The rows of a sample: itself, or the sides of a pair, each as `sample` has it."""
        if self.sides == 1:
            return [self.sample(index)]
        return [self._read([document]) for document in self.documents(index).tolist()]

    def is_good(self, samples: Ints) -> npt.NDArray[np.bool_]:
        """Of samples of one labelled document each, whether it is a good answer."""
        return self.arrays["doc_label"][self.arrays["sample_docs"][self.arrays["sample_offsets"][samples]]]

    def chosen_tokens(self, samples: Ints, *, prompts: bool) -> int:
        """Labels that count of chosen sides; with `prompts` all tokens behind another."""
        total, offsets = 0, self.arrays["offsets"]
        for document in self.arrays["sample_docs"][self.arrays["sample_offsets"][samples]].tolist():
            start, stop = int(offsets[document]) + 1, int(offsets[document + 1])
            total += stop - start if prompts else int(np.count_nonzero(self.arrays["trained"][start:stop]))
        return total

    def mismatched(self, samples: Ints) -> Self:
        """In memory: the prompt of each sample with the answer of the one before it."""
        rows = [self.sample(int(sample)) for sample in samples]
        begins = [int(np.argmax(labels != IGNORED)) + 1 for _, _, labels in rows]
        prompts = [ids[:begin] for (ids, _, _), begin in zip(rows, begins, strict=True)]
        answers = [ids[begin:] for (ids, _, _), begin in zip(rows, begins, strict=True)]
        both = [
            (np.concatenate([prompt, answer])[: self.max_length], len(prompt))
            for prompt, answer in zip(prompts, [answers[-1], *answers[:-1]], strict=True)
        ]
        lengths = np.array([len(ids) for ids, _ in both], np.int64)
        trained = [np.arange(len(ids)) >= prompt for ids, prompt in both]
        arrays: dict[str, npt.NDArray[Any]] = {
            **self.arrays,
            "tokens": np.concatenate([ids for ids, _ in both]),
            "trained": np.concatenate(trained),
            "offsets": np.concatenate([[0], np.cumsum(lengths)]),
            "sample_offsets": np.arange(len(both) + 1),
            "sample_docs": np.arange(len(both)),
            "lengths": lengths.astype(np.int32),
            "counts": np.array([int(one[1:].sum()) for one in trained], np.int32),
        }
        return replace(self, arrays=arrays)

    def sample(self, index: int) -> tuple[Ints, Ints, Ints]:
        """One sample as (input_ids, position_ids, labels), int64 [length]; `labels[t]` is the token
        after t if that is trained, else -100; none crosses into the next document."""
        return self._read(self.documents(index))

    def _read(self, documents: Sequence[int] | Ints) -> tuple[Ints, Ints, Ints]:
        offsets = self.arrays["offsets"]
        length = sum(int(offsets[document + 1] - offsets[document]) for document in documents)
        ids, positions, labels = (np.empty(length, np.int64) for _ in range(3))
        at = 0
        for document in documents:
            start, stop = offsets[document : document + 2]
            here = slice(at, at + int(stop - start))
            ids[here] = self.arrays["tokens"][start:stop]
            positions[here] = np.arange(stop - start)
            trained = self.arrays["trained"][start + 1 : stop]
            labels[here.start : here.stop - 1] = np.where(trained, ids[here.start + 1 : here.stop], IGNORED)
            labels[here.stop - 1] = IGNORED
            at = here.stop
        return ids, positions, labels

    def longest_alone(self, rows: int) -> Self:
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
    """manifest.json of prepared data. Raises DataError: its files are not as they were."""
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
