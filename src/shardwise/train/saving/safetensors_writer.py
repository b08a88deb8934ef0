"""Writes a safetensors file tensor by tensor, and casts and hashes it while it is written.

safetensors' own `save_file` needs all tensors in memory at once, in their final type; here a model
that is gathered tensor by tensor, or cast, takes no second copy of itself. The format: 8 bytes with
the length of the header, a JSON header with dtype, shape and offsets of each tensor, the data.
"""

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import _TYPES

from shardwise.units import MIB

_NAMES = {dtype: name for name, dtype in _TYPES.items()}

#: Elements that are cast, written and hashed at once, which a processor's cache holds.
_AT_ONCE = 2**20

#: Bytes that may be left to be written and hashed when more comes; and after which a disk is made
#: to write what it was given, and writes while more comes: by itself a system may begin only when
#: the file is closed.
_AHEAD_BYTES = _SYNCED_BYTES = 64 * MIB


class Entry(NamedTuple):
    """A tensor as it is written."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """A safetensors file being written: threads cast and write, hash, and sync while the caller
    makes the next tensors. `entries` are written in this order; larger dtypes first, so that all
    are aligned. All methods may raise OSError."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._left = list(entries.items())
        self._sha256 = hashlib.sha256()
        self._file = path.open("wb", buffering=0)
        self._threads = [ThreadPoolExecutor(max_workers=1) for _ in range(3)]
        self._busy: deque[tuple[int, Future[Future[None]]]] = deque()
        self._syncing: Future[None] | None = None
        self._unsynced = 0
        self._put(torch.frombuffer(_header(entries), dtype=torch.uint8), dtype=torch.uint8)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes the next tensor, cast; it stays as it is until the file is closed. ValueError."""
        expected, entry = self._left.pop(0)
        if (name, tuple(tensor.shape)) != (expected, entry.shape):
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; expected {expected} of shape {entry.shape}")
        for part in tensor.detach().contiguous().reshape(-1).split(_AT_ONCE):
            self._put(part, dtype=entry.dtype)

    def close(self) -> dict[str, Any]:
        """Syncs the file to disk; its size and sha256. ValueError if a tensor is missing."""
        try:
            self._wait(0)
            if self._left:
                raise ValueError(f"{self.path.name} ends before {self._left[0][0]}")
            self._sync().result()
        finally:
            self.abandon()
        return {"size": self.path.stat().st_size, "sha256": self._sha256.hexdigest()}

    def abandon(self) -> None:
        """Closes the file."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        self._file.close()

    def _put(self, part: torch.Tensor, *, dtype: torch.dtype) -> None:
        self._wait(_AHEAD_BYTES)
        self._busy.append((part.numel() * dtype.itemsize, self._threads[0].submit(self._write, part, dtype)))

    def _write(self, part: torch.Tensor, dtype: torch.dtype) -> Future[None]:
        elements: Any = part.to(dtype).view(torch.uint8).numpy()
        content = memoryview(elements)
        hashing = self._threads[1].submit(self._sha256.update, content)
        at = 0
        while at < len(content):
            at += self._file.write(content[at:])
        self._unsynced += len(content)
        if self._unsynced >= _SYNCED_BYTES and (self._syncing is None or self._syncing.done()):
            self._sync()
        return hashing

    def _sync(self) -> Future[None]:
        """Begins to sync what is written, after the last sync: a system tells of a failure once."""
        if self._syncing is not None:
            self._syncing.result()
        self._unsynced = 0
        self._syncing = self._threads[2].submit(os.fsync, self._file.fileno())
        return self._syncing

    def _wait(self, most: int) -> None:
        """Until at most so many bytes are left to be written and hashed."""
        while sum(count for count, _ in self._busy) > most:
            self._busy.popleft()[1].result().result()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Writes tensors that are on the CPU; the file's size and sha256."""
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    file = TensorFile(path, {name: Entry(dtype=t.dtype, shape=tuple(t.shape)) for name, t in ordered.items()})
    try:
        for name, tensor in ordered.items():
            file.add(name, tensor)
        return file.close()
    finally:
        file.abandon()


def write_hole(path: Path, entries: Mapping[str, Entry]) -> None:
    """A file without its tensors' bytes, which takes no space where files may have holes."""
    header = _header(entries)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(entry.nbytes for entry in entries.values()))


def _header(entries: Mapping[str, Entry]) -> bytearray:
    said: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, entry in entries.items():
        place = {"data_offsets": [at, at + entry.nbytes]}
        said[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), **place}
        at += entry.nbytes
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return bytearray(len(text).to_bytes(8, "little") + text)
