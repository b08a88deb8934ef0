"""Compares a saved folder with the live model, bit for bit.

Each rank reads the part of each file that it holds itself, so that no rank needs a second model. Rank 0 also asks
transformers or PEFT which tensors it will load.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import safe_open

from shardwise.methods.lora import expected_tensors
from shardwise.models.keys import Keys
from shardwise.models.load import build_on_meta, kin_of, read_config
from shardwise.models.weights import bounds_of, read_part
from shardwise.parallel.ownership import Ownership
from shardwise.train.guards.replicas import bits
from shardwise.train.saving.export import ADAPTER, INDEX, WEIGHTS, Result
from shardwise.train.saving.pieces import piece

Shape = tuple[int, ...]
T = TypeVar("T")
R = TypeVar("R")


def part_faults(folder: Path, result: Result, *, ownership: Ownership) -> list[str]:
    """Where the files differ from this rank's own part, as sentences."""
    with _opened(folder) as handles:

        def faults_of(saved: tuple[str, torch.Tensor]) -> list[str]:
            name, parameter = saved
            mine = piece(name, parameter)
            if not mine.local.numel() or not ownership.counts(name, parameter):
                return []
            spans = result.spans(name, mine.shape, offsets=mine.offsets, lengths=tuple(mine.local.shape))
            found = (
                _fault(handles, key, part, live=mine.local[here].to(result.saved_dtype)) for key, part, here in spans
            )
            return [one for one in found if one]

        return list(chain.from_iterable(_in_threads(faults_of, result.saved)))


def _fault(handles: dict[str, Any], key: str, part: Any, *, live: torch.Tensor) -> str | None:
    if key not in handles:
        return f"{key} is missing"
    stored, live = read_part(handles[key], key, part), live.cpu()
    same = (stored.dtype, stored.shape) == (live.dtype, live.shape) and torch.equal(bits(stored), bits(live))
    return None if same else f"{key} is not the live weight"


def _in_threads(look: Callable[[T], R], at: Sequence[T]) -> list[R]:
    """`look` at each; several at a time: reading, casting and comparing hold no lock of Python's."""
    with ThreadPoolExecutor(max_workers=min(4, torch.get_num_threads())) as pool:
        return list(pool.map(look, at))


def folder_faults(folder: Path, result: Result) -> list[str]:
    """What `from_pretrained` would miss in the folder, or not use, as sentences."""
    with _opened(folder) as handles:
        stored = {key: tuple(handle.get_slice(key).get_shape()) for key, handle in handles.items()}
    if result.adapters is None:
        return _model_faults(folder, stored)
    base = build_on_meta(copy.deepcopy(cast(Any, result.model).config), attn_implementation="eager")
    expected = expected_tensors(base, folder)
    return _differences([(key,) for key in expected], expected=expected, stored=stored)


@dataclass(frozen=True, kw_only=True)
class Values:
    """One rank's saved weights: names of those that are not finite; whether any lora_B is not zero, or None."""

    not_finite: list[str]
    adapters_moved: bool | None


def values_of(result: Result, *, ownership: Ownership) -> Values:
    """Checks what this rank owns, in the dtype that is saved."""
    mine = [(name, piece(name, p).local) for name, p in result.saved if ownership.counts(name, p)]
    halves = [local for name, local in mine if ".lora_B." in name]
    finite = _in_threads(lambda one: _is_finite(one[1].to(result.saved_dtype)), mine)
    return Values(
        not_finite=[result.key(name) for (name, _), fine in zip(mine, finite, strict=True) if not fine],
        adapters_moved=any(bool(local.any()) for local in halves) if halves else None,
    )


def _is_finite(part: torch.Tensor) -> bool:
    return not part.numel() or bool(bounds_of(part).isfinite().all())


def warnings_of(ranks: Sequence[Values], *, trained: bool) -> list[str]:
    """Warnings about weights that were saved as they are; `trained`: some learning rate was above zero."""
    found = [f"{name} holds NaN or infinity" for name in sorted({name for one in ranks for name in one.not_finite})]
    moved = [one.adapters_moved for one in ranks if one.adapters_moved is not None]
    if trained and moved and not any(moved):
        found.append("every lora_B is zero: the adapter changes nothing")
    return found


def _model_faults(folder: Path, stored: dict[str, Shape]) -> list[str]:
    """As `folder_faults`, for a whole model; of tied weights one is enough."""
    model = build_on_meta(read_config(folder), attn_implementation="eager")
    keys = Keys(model, stored)
    found = {name: shape for key, shape in stored.items() if (name := keys.names[key]) not in keys.stacks}
    found |= {name: stack.shape(stored.__getitem__, where=str(folder)) for name, stack in keys.stacks.items()}
    expected = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    groups = {tuple(sorted(set(kin))) for kin in kin_of(model).values()}
    return _differences(groups, expected=expected, stored=found)


def _differences(groups: Any, *, expected: dict[str, Shape], stored: dict[str, Shape]) -> list[str]:
    """Of each group one name must be stored, with the expected shape, and nothing else."""
    faults = [f"{group[0]} is missing" for group in groups if not any(name in stored for name in group)]
    faults += [f"{name} has no place in the model" for name in stored.keys() - expected.keys()]
    for name in stored.keys() & expected.keys():
        if stored[name] != expected[name]:
            faults.append(f"{name} has the shape {stored[name]}; expected {expected[name]}")
    return faults


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Any]]:
    """The open file of each key, of the files that `from_pretrained` opens."""
    if (folder / INDEX).is_file():
        files = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        files = [ADAPTER if (folder / ADAPTER).is_file() else WEIGHTS]
    handles = [safe_open(folder / name, framework="pt") for name in files]
    yield {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118  # a handle is no mapping
