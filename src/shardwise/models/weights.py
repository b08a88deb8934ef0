"""The weights of a model folder, as slices read from safetensors.

A model folder is data from a stranger: names inside it must be plain file names, only safetensors
is opened, and a pointer, a truncated file or a pickle is refused by content with a sentence.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open

from shardwise.errors import ModelError, Problem
from shardwise.models.keys import Keys, Made
from shardwise.models.published import find_packed
from shardwise.spec.run import read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_INDEX_BYTES = 64 * 1024 * 1024

#: A file is mapped into memory, and its pages stay there for as long as it is open: after this many
#: bytes it is opened anew, so that a rank's resident memory stays near what it keeps.
_MAPPED_BYTES = 16 * 1024 * 1024

#: Elements that a weight may have: others would be cast to numbers that nobody trained.
_TYPES = ("F64", "F32", "F16", "BF16")

#: Ends of names that older transformers versions gave rotary frequencies and causal masks in files.
_OLD_BUFFERS = (".inv_freq", ".masked_bias", ".attn.bias", ".attn.attention.bias")


def window(offsets: Iterable[int], lengths: Iterable[int]) -> tuple[slice, ...]:
    """The slices of a part that begins at `offsets` and is `lengths` long in each dim."""
    return tuple(slice(start, start + length) for start, length in zip(offsets, lengths, strict=True))


def read_part(handle: Any, key: str, part: tuple[slice, ...]) -> torch.Tensor:
    """A part of a tensor in an open safetensors file."""
    return handle.get_slice(key)[part] if part else handle.get_tensor(key)


class Weights:
    """Named tensors spread over the safetensors files of one folder; nothing is read until a slice
    is asked for. Those that are published in fewer bits are what they are widened to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._mapped: dict[str, int] = {}
        self._file_of: dict[str, str] = {}
        for name in _weight_files(folder):
            handle = _open(folder / name)
            self._files[name] = handle
            self._file_of.update(dict.fromkeys(handle.keys(), name))
        config = read_json(folder / "config.json") or {}
        self._packed, gone = find_packed(config, self._file_of, self.stored_type)
        self._file_of.update({key: self._file_of[packed.elements] for key, packed in self._packed.items()})
        self._keys = {key: key for key in self._file_of if key not in gone}
        self._stacks: dict[str, Made] = {}

    @property
    def files(self) -> list[str]:
        """Names of the folder's safetensors files that make up the model."""
        return sorted(self._files)

    @property
    def names(self) -> set[str]:
        """Names of all tensors: the files' keys, until `rename` says what the model calls them."""
        return set(self._keys)

    def rename(self, keys: Keys) -> None:
        """Calls all tensors as the model does. Raises ModelError: two keys are one."""
        problems: list[Problem] = []
        self._stacks = keys.stacks
        self._keys = {name: stack.keys[0][0] for name, stack in keys.stacks.items()}
        stacked = {key for stack in keys.stacks.values() for part in stack.keys for key in part}
        for key in sorted(keys.names):
            name = keys.names[key]
            first = self._keys.setdefault(name, key)
            if first != key and not {first, key} <= stacked:
                message = f"{first} and {key} are both {name} of this architecture; expected one of them"
                problems.append(Problem(where=str(self.folder / self._file_of[key]), message=message))
        if problems:
            raise ModelError(problems)

    def key(self, name: str) -> str:
        """What a tensor is called in its file; of stacked ones the first."""
        return self._keys[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of a tensor. Raises ModelError: it is stacked, with matrices not alike."""
        if name in self._stacks:
            return self._stacks[name].shape(self._shape_of, where=str(self.folder))
        return self._shape_of(self.key(name))

    def type(self, name: str) -> str:
        """What safetensors calls the type of a tensor's elements; of stacked ones several."""
        keys = [k for part in self._stacks[name].keys for k in part] if name in self._stacks else [self.key(name)]
        return ", ".join(sorted({"BF16" if k in self._packed else self.stored_type(k) for k in keys}))

    def read(self, name: str, *, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
        """The part of a tensor that begins at `offsets` and is `lengths` long in each dim: a view
        of the file, or a stack of what lies in several places."""
        if name not in self._stacks:
            return self._part(self.key(name), offsets=offsets, lengths=lengths)
        stack, whole = self._stacks[name], self.shape(name)
        made: torch.Tensor | None = None
        for key, stored, asked, _ in stack.spans(whole, offsets=offsets, lengths=lengths):
            part = self._part(key, offsets=[s.start for s in stored], lengths=[s.stop - s.start for s in stored])
            made = part.new_empty(lengths) if made is None else made
            made[asked] = part
        return torch.empty(lengths) if made is None else made

    def _part(self, key: str, *, offsets: Iterable[int], lengths: Iterable[int]) -> torch.Tensor:
        if key in self._packed:
            return self._packed[key].read(self, offsets=tuple(offsets), lengths=tuple(lengths))
        return self.stored_part(key, window(offsets, lengths))

    def stored_part(self, key: str, part: tuple[slice, ...]) -> torch.Tensor:
        """A part of a tensor as it stands in its file."""
        file = self._file_of[key]
        found = read_part(self._files[file], key, part)
        self._mapped[file] = self._mapped.get(file, 0) + found.nbytes
        if self._mapped[file] > _MAPPED_BYTES:
            self._files[file] = _open(self.folder / file)
            self._mapped[file] = 0
        return found

    def where(self, name: str) -> str:
        """The file a tensor stands in."""
        return str(self.folder / self._file_of[self.key(name)])

    def _slice(self, key: str) -> Any:
        return self._files[self._file_of[key]].get_slice(key)

    def _shape_of(self, key: str) -> tuple[int, ...]:
        return self._packed[key].shape(self) if key in self._packed else self.stored_shape(key)

    def stored_type(self, key: str) -> str:
        """What safetensors calls the type of a tensor's elements, as it stands in its file."""
        return str(self._slice(key).get_dtype())

    def stored_shape(self, key: str) -> tuple[int, ...]:
        """Of a tensor as it stands in its file."""
        return tuple(self._slice(key).get_shape())


def _weight_files(folder: Path) -> list[str]:
    """Names of a folder's safetensors files. Raises ModelError: none, or not plain in the index."""
    index = folder / _INDEX
    if not index.is_file():
        if (folder / _SINGLE).is_file():
            return [_SINGLE]
        raise ModelError.at(folder, _no_weights(folder))
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise ModelError.at(index, "is larger than 64 MiB; it is not a weight index")
    try:
        data: Any = json.loads(index.read_text(encoding="utf-8"))
        names = sorted(set(cast(dict[str, Any], data["weight_map"]).values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError.at(index, f"is not a weight index: {error}") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError.at(index, f"names {name!r}; expected a .safetensors file of the same folder")
        if not (folder / name).is_file():
            raise ModelError.at(index, f"names {name}, which is missing; download the model again")
    return names


def _no_weights(folder: Path) -> str:
    others = sorted(p.name for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if others:
        return (
            f"holds {others[0]} but no safetensors; pickled weights can run code and are not read. "
            "Convert them with save_pretrained(safe_serialization=True) in an environment you trust"
        )
    return f"holds no {_SINGLE} and no {_INDEX}; expected a model folder with weights"


def _open(path: Path) -> Any:
    with path.open("rb") as file:
        if file.read(24).startswith(b"version https://git-lfs"):
            raise ModelError.at(path, "is a Git LFS pointer, not the weights; run `git lfs pull`")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError.at(path, f"is not a whole safetensors file ({error}); download it again") from None


def check_names(weights: Weights, *, expected: dict[str, tuple[int, ...]], ignored: Iterable[str] = ()) -> None:
    """Compares a folder's tensors with the shapes the model needs; `ignored` ones may be there.
    Raises ModelError: missing or unexpected tensors, other shapes, or no floats; all of them."""
    problems: list[Problem] = []
    names = weights.names
    for name, shape in expected.items():
        if name not in names:
            problems.append(Problem(where=str(weights.folder), message=f"the weight {name} is missing"))
        elif weights.shape(name) != shape:
            message = f"{weights.key(name)} has the shape {weights.shape(name)}; config.json asks for {shape}"
            problems.append(Problem(where=weights.where(name), message=message))
        elif not {*(kind := weights.type(name)).split(", ")} <= {*_TYPES}:
            message = (
                f"{weights.key(name)} is of type {kind}; expected {', '.join(_TYPES)}. Save the model again as floats"
            )
            problems.append(Problem(where=weights.where(name), message=message))
    extra = (n for n in names - {*expected, *ignored} if not n.endswith(_OLD_BUFFERS))
    stray = ((weights.where(name), weights.key(name)) for name in sorted(extra))
    problems += [Problem(where=where, message=f"{key} has no place in this architecture") for where, key in stray]
    if problems:
        raise ModelError(problems)


def bounds_of(part: torch.Tensor) -> torch.Tensor:
    """Least and largest element, or NaN where there is one: [2], on the part's own device."""
    return torch.stack(torch.aminmax(part)).float()


def check_finite(weights: Weights, bounds: Mapping[str, torch.Tensor]) -> None:
    """Refuses NaN and infinity, by the `bounds_of` each weight, all on one device: the host waits
    once, not per tensor. Raises ModelError: some are not finite; each as its own problem."""
    if not bounds:
        return
    finite: list[bool] = torch.stack(list(bounds.values())).isfinite().all(dim=1).tolist()
    problems = [
        Problem(where=weights.where(name), message=f"the weight {weights.key(name)} holds NaN or infinity")
        for name, is_finite in zip(bounds, finite, strict=True)
        if not is_finite
    ]
    if problems:
        raise ModelError(problems)


def check_tied(weights: Weights, *, kin: Iterable[Collection[str]]) -> None:
    """Of weights that the architecture ties (`kin`), a folder may hold one, or several equal ones.
    Raises ModelError: two differ: transformers would train both, config.json means one."""
    stored = weights.names
    groups = {tuple(sorted(stored.intersection(names))) for names in kin}
    pairs = [(one, other) for one, *others in filter(None, sorted(groups)) for other in others]
    problems = [
        Problem(
            where=weights.where(other),
            message=(
                f"{weights.key(other)} is not {weights.key(one)}, to which config.json ties it; where both are meant, "
                "write tie_word_embeddings: false there, otherwise save the model again without one of them"
            ),
        )
        for one, other in pairs
        if not _equal(weights, one, other)
    ]
    if problems:
        raise ModelError(problems)


_COMPARED_AT_ONCE = 2**22


def _equal(weights: Weights, one: str, other: str) -> bool:
    """Compared by some rows at a time: an embedding may be larger than what a rank is to hold."""
    shape = weights.shape(one)
    if weights.shape(other) != shape:
        return False
    first, *rest = shape or (1,)
    rows = max(1, _COMPARED_AT_ONCE // max(1, math.prod(rest)))

    def part(name: str, at: int) -> torch.Tensor:
        offsets, lengths = (at, *(0 for _ in rest)), (min(rows, first - at), *rest)
        return weights.read(name, offsets=offsets if shape else (), lengths=lengths if shape else ())

    return all(bool((part(one, at) == part(other, at)).all()) for at in range(0, first, rows))
