"""Writes a safetensors file tensor by tensor, and hashes it while it is written.

safetensors' own `save_file` needs all tensors in memory. The format: 8 bytes with the length of the header, a JSON
header with dtype, shape and offsets of each tensor, the data.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import _TYPES

_NAMES = {dtype: name for name, dtype in _TYPES.items()}


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
    """A safetensors file being written; a thread writes and another hashes one tensor while the caller makes the next.
    `entries` are written in this order; larger dtypes first, so that all are aligned. All methods may raise OSError."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path = path
        self._left = list(entries.items())
        self._sha256 = hashlib.sha256()
        self._file = path.open("wb")
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._busy: list[Future[Any]] = []
        self._put(memoryview(_header(entries)))

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes the next tensor, on the CPU; it must not change before the next call. ValueError if it is another."""
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
            self._wait()
            if self._left:
                raise ValueError(f"{self.path.name} ends before {self._left[0][0]}")
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self.abandon()
        return {"size": self.path.stat().st_size, "sha256": self._sha256.hexdigest()}

    def abandon(self) -> None:
        """Closes the file."""
        self._pool.shutdown()
        self._file.close()

    def _put(self, content: memoryview) -> None:
        self._wait()
        self._busy = [self._pool.submit(task, content) for task in (self._file.write, self._sha256.update)]

    def _wait(self) -> None:
        busy, self._busy = self._busy, []
        for future in busy:
            future.result()


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
