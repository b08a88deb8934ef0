"""Writes a safetensors file tensor by tensor, and hashes it while it is written.

safetensors' own `save_file` needs all tensors in memory. The format: 8 bytes with the length of the header, a JSON
header with dtype, shape and offsets of each tensor, the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import _TYPES

_NAMES = {dtype: name for name, dtype in _TYPES.items()}

#: Bytes that may be left to be written and hashed when another tensor comes.
_AHEAD_BYTES = 64 * 1024 * 1024

#: After so many bytes a disk is made to write what it was given, and writes while more comes: by itself a system may
#: begin only when the file is closed.
_SYNCED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Dtype and shape of a tensor to be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """A safetensors file being written: threads write, hash and sync while the caller makes the next tensors. `entries`
    are written in this order; larger dtypes first, so that all are aligned. All methods may raise OSError."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._left = list(entries.items())
        self._sha256 = hashlib.sha256()
        self._file = path.open("wb")
        self._threads = [ThreadPoolExecutor(max_workers=1) for _ in range(3)]
        self._busy: deque[tuple[int, list[Future[Any]]]] = deque()
        self._syncing: Future[None] | None = None
        self._unsynced = 0
        self._put(memoryview(_header(entries)))

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes the next tensor, on the CPU; it must not change before the file is closed. ValueError if it is
        another."""
        expected, entry = self._left.pop(0)
        if (name, tensor.dtype, tuple(tensor.shape)) != (expected, entry.dtype, entry.shape):
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; expected {expected}, {entry.dtype} of shape "
                f"{entry.shape}"
            )
        elements: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        self._put(memoryview(elements))

    def close(self) -> dict[str, Any]:
        """Syncs the file to disk; its size and sha256. ValueError if a tensor is missing."""
        try:
            self._wait(0)
            if self._left:
                raise ValueError(f"{self.path.name} ends before {self._left[0][0]}")
            self._file.flush()
            self._sync().result()
        finally:
            self.abandon()
        return {"size": self.path.stat().st_size, "sha256": self._sha256.hexdigest()}

    def abandon(self) -> None:
        """Closes the file."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        self._file.close()

    def _put(self, content: memoryview) -> None:
        self._wait(_AHEAD_BYTES)
        writing, hashing, _ = self._threads
        tasks = [writing.submit(self._write, content), hashing.submit(self._sha256.update, content)]
        self._busy.append((content.nbytes, tasks))

    def _write(self, content: memoryview) -> None:
        self._file.write(content)
        self._unsynced += content.nbytes
        if self._unsynced >= _SYNCED_BYTES and (self._syncing is None or self._syncing.done()):
            self._sync()

    def _sync(self) -> Future[None]:
        """Begins to sync what is written, after what it synced before: a system tells a file once what failed."""
        if self._syncing is not None:
            self._syncing.result()
        self._unsynced = 0
        self._syncing = self._threads[2].submit(os.fsync, self._file.fileno())
        return self._syncing

    def _wait(self, most: int) -> None:
        """Until at most so many bytes are left to be written and hashed."""
        while sum(count for count, _ in self._busy) > most:
            for task in self._busy.popleft()[1]:
                task.result()


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


def _header(entries: Mapping[str, Entry]) -> bytes:
    """Length and header, padded to 8 bytes."""
    said: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, entry in entries.items():
        offsets = [at, at + entry.nbytes]
        said[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": offsets}
        at += entry.nbytes
    text = json.dumps(said, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
