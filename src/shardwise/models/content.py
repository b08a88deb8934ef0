"""A short hash per file of a model folder, to tell two folders apart without reading all of them.

Files are hashed whole; of weights of more than `WHOLE_BYTES`, headers and the first, middle and
last block of each tensor are. Not seen are elements that differ between these blocks and nowhere
else.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from shardwise.catalog.hub import tokenizer_files

#: What a model is built and read by, beside its tokenizer.
CONFIGURATIONS = ("config.json", "generation_config.json", "model.safetensors.index.json")

WHOLE_BYTES = 32 * 1024 * 1024
BLOCK_BYTES = 4096


def folder_content(folder: Path, *, weights: Iterable[str]) -> dict[str, str]:
    """File that a training reads -> hash of its size and what was read; `weights`: their names."""
    others = {path for name in CONFIGURATIONS if (path := folder / name).is_file()} | set(tokenizer_files(folder))
    content = {str(path.relative_to(folder)): _hash(path, sampled=False) for path in sorted(others)}
    files = {name: folder / name for name in sorted(weights)}
    sampled = sum(path.stat().st_size for path in files.values()) > WHOLE_BYTES
    return content | {name: _hash(path, sampled=sampled) for name, path in files.items()}


def _hash(path: Path, *, sampled: bool) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for begin, end in _sampled(file) if sampled else [(0, size)]:
            file.seek(begin)
            digest.update(file.read(end - begin))
    return digest.hexdigest()[:32]


def _sampled(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """(begin, end) of a safetensors header, and of the blocks of each tensor; a small one whole."""
    length = int.from_bytes(file.read(8), "little")
    header: dict[str, Any] = json.loads(file.read(length))
    yield 0, 8 + length
    for begin, end in sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"):
        starts = (begin, (begin + end - BLOCK_BYTES) // 2, end - BLOCK_BYTES)
        small = end - begin <= 3 * BLOCK_BYTES
        for start, stop in [(begin, end)] if small else [(at, at + BLOCK_BYTES) for at in starts]:
            yield 8 + length + start, 8 + length + stop
