"""A short hash per file of a model folder, to tell two folders apart without reading all of them.

Configurations and tokenizers are hashed whole, up to `WHOLE_BYTES`. Of weights, headers and the first, middle and last
block of each tensor are. Not seen are elements that differ between these blocks and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from shardwise.catalog.hub import tokenizer_files

#: What a model is built and read by, beside its tokenizer.
CONFIGURATIONS = ("config.json", "generation_config.json", "model.safetensors.index.json")

#: Files up to this size are hashed whole, and of weights all of a folder that are no larger together.
WHOLE_BYTES = 32 * 1024 * 1024

#: Most that is read of the weights of a folder, beside their headers, and of one block.
SAMPLED_BYTES, BLOCK_BYTES = 32 * 1024 * 1024, 4096

_BLOCKS = 3

Span = tuple[int, int]
"""Where in a file something begins, and where it ends, in bytes."""


def folder_content(folder: Path, *, weights: Iterable[str]) -> dict[str, str]:
    """Name of each file that a training reads -> a hash of its size and of what was read of it; `weights` names the
    safetensors files."""
    others = {path for name in CONFIGURATIONS if (path := folder / name).is_file()} | set(tokenizer_files(folder))
    content = {str(path.relative_to(folder)): _hash(path, _ends(path.stat().st_size)) for path in sorted(others)}
    files = {name: folder / name for name in sorted(weights)}
    if sum(path.stat().st_size for path in files.values()) <= WHOLE_BYTES:
        return content | {name: _hash(path, [(0, path.stat().st_size)]) for name, path in files.items()}
    tensors = {name: _tensors(path) for name, path in files.items()}
    block = min(BLOCK_BYTES, SAMPLED_BYTES // (_BLOCKS * max(1, sum(map(len, tensors.values())))))
    return content | {name: _hash(path, _sampled(tensors[name], block=block)) for name, path in files.items()}


def _ends(size: int) -> list[Span]:
    """A whole file; of a larger one, its beginning and its end."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    return [(0, WHOLE_BYTES // 2), (size - WHOLE_BYTES // 2, size)]


def _tensors(path: Path) -> list[Span]:
    """The header of a safetensors file, and where each of its tensors lies, as the header says."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = cast(dict[str, Any], json.loads(file.read(length)))
    data = 8 + length
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    return [(0, data), *sorted((data + int(begin), data + int(end)) for begin, end in places)]


def _sampled(spans: list[Span], *, block: int) -> Iterator[Span]:
    """The header, and the first, the middle and the last block of each tensor; a small tensor whole."""
    yield spans[0]
    for begin, end in spans[1:]:
        if end - begin <= _BLOCKS * block:
            yield begin, end
            continue
        middle = (begin + end - block) // 2
        yield from ((at, at + block) for at in (begin, middle, end - block))


def _hash(path: Path, spans: Iterable[Span]) -> str:
    """Of a file's size and of the bytes of its spans."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for begin, end in spans:
            digest.update(os.pread(descriptor, end - begin, begin))
    finally:
        os.close(descriptor)
    return digest.hexdigest()[:32]
