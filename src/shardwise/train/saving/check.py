"""Compares a saved folder with the live model, bit for bit.

Each rank reads the part of each file that it holds itself, so that no rank needs a second model.
Rank 0 also asks transformers or PEFT which tensors it will load.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import safe_open

from shardwise.methods.lora import expected_tensors
from shardwise.models.buffers import saved_buffers
from shardwise.models.keys import Keys
from shardwise.models.load import build_on_meta, kin_of, read_config
from shardwise.models.weights import bounds_of, read_part
from shardwise.models.wrapper import find_inside, language_weights
from shardwise.parallel.ownership import Ownership
from shardwise.spec.run import read_json
from shardwise.train.guards.checks import bits
from shardwise.train.saving.background import serial_operators
from shardwise.train.saving.checkpoint_reader import TensorShard, pieces
from shardwise.train.saving.export import ADAPTER, INDEX, WEIGHTS, Copied, Result, Shape

#: Elements that are cast and compared at once.
_AT_ONCE = 2**20


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What one rank found: where the files differ from its own part, as sentences; names of saved
    weights that are not finite; whether any lora_B is not zero, or None."""

    faults: list[str]
    not_finite: list[str]
    adapters_moved: bool | None


def compare(folder: Path, result: Result, *, ownership: Ownership) -> Compared:
    """Compares what this rank owns with the files, bit for bit, several parameters at a time."""
    mine = [(name, part) for name, p in result.saved if ownership.counts(name, p) for part in pieces(name, p)]
    handles = _opened(folder)
    with serial_operators() as threads, ThreadPoolExecutor(min(4, threads)) as pool:

        def look(part: TensorShard) -> list[tuple[str | None, bool]]:
            if not part.local.numel():
                return []
            spans = result.spans(part.name, part.shape, offsets=part.offsets, lengths=tuple(part.local.shape))
            dtype = result.dtype(part.name)
            return [_look(handles, key, at, live=part.local[w], dtype=dtype) for key, at, w, _ in spans]

        looks = list(pool.map(look, (part for _, part in mine)))
    # PEFT begins B with zeros: an adapter whose B's all are has learned nothing.
    halves = [part.local for name, part in mine if ".lora_B." in name]
    seen = [(name, fault, is_finite) for (name, _), each in zip(mine, looks, strict=True) for fault, is_finite in each]
    return Compared(
        faults=[fault for _, fault, _ in seen if fault],
        not_finite=[result.key(name) for name, _, is_finite in seen if not is_finite],
        adapters_moved=any(bool(local.any()) for local in halves) if halves else None,
    )


def _look(
    handles: dict[str, Any], key: str, at: tuple[slice, ...], *, live: torch.Tensor, dtype: torch.dtype
) -> tuple[str | None, bool]:
    """What is wrong with a part in a file; whether it is finite. In pieces that a cache holds."""
    stored = read_part(handles[key], key, at) if key in handles else None
    same = stored is not None and (stored.dtype, stored.shape) == (dtype, live.shape)
    is_finite, others = True, stored if stored is not None and same else live
    for one, other in zip(live.flatten().split(_AT_ONCE), others.flatten().split(_AT_ONCE), strict=True):
        cast = one.to(dtype).cpu()
        is_finite = is_finite and bool(bounds_of(cast).isfinite().all())
        same = same and np.array_equal(bits(cast).numpy(), bits(other).numpy())
    fault = f"{key} is missing" if stored is None else None if same else f"{key} is not the live weight"
    return fault, is_finite


def folder_faults(folder: Path, result: Result) -> list[str]:
    """What `from_pretrained` would miss or not use; of tied weights one is enough."""
    copied, beside = Copied(result), set[str]()
    handles = _opened(folder)
    stored = {key: tuple(handle.get_slice(key).get_shape()) for key, handle in handles.items()}
    changed = [key for key in copied.entries if not _is_copy(handles, key, of=copied.read(key))]
    if result.adapters is not None:
        base = build_on_meta(copy.deepcopy(cast(Any, result.model).config), attn_implementation="eager")
        expected, loaded = expected_tensors(base, folder, stored)
        return _differences([(key,) for key in expected], expected=expected, stored=loaded)
    model = build_on_meta(read_config(folder), attn_implementation="eager")
    keys = Keys(model, stored, stored.__getitem__, reads=language_weights(model))
    if result.beside is not None:
        beside = {keys.names[key] for key in result.beside.keys}
    found = {name: shape for key, shape in stored.items() if (name := keys.names[key]) not in keys.stacks}
    found |= {name: stack.shape(stored.__getitem__, where=str(folder)) for name, stack in keys.stacks.items()}
    expected = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    buffers = {name: tuple(buffer.shape) for name, buffer in saved_buffers(model).items()}
    groups = {tuple(sorted(set(kin))) for kin in kin_of(model).values()}
    inside = find_inside(model)
    groups |= {(name,) for name in buffers if inside is None or inside.holds(name)}
    expected |= buffers | {name: found[name] for name in beside - expected.keys() if name in found}
    found, expected = ({n: shape for n, shape in held.items() if n not in keys.unread} for held in (found, expected))
    groups = {names for names in groups if not keys.unread & {*names}}
    faults = [f"{key} is not what {result.source} has" for key in changed]
    return faults + _differences(groups, expected=expected, stored=found)


def _is_copy(handles: dict[str, Any], key: str, *, of: torch.Tensor) -> bool:
    if key not in handles:
        return False
    stored = handles[key].get_tensor(key)
    return (stored.dtype, stored.shape) == (of.dtype, of.shape) and bool((bits(stored) == bits(of)).all())


def warnings_of(ranks: Sequence[Compared], *, trained: bool) -> list[str]:
    """Of weights that were saved as they are; `trained`: some rate was above zero."""
    found = [f"{name} holds NaN or infinity" for name in sorted({name for one in ranks for name in one.not_finite})]
    if trained and {one.adapters_moved for one in ranks} in ({False}, {False, None}):
        found.append("every lora_B is zero: the adapter changes nothing")
    return found


def _differences(groups: Any, *, expected: dict[str, Shape], stored: dict[str, Shape]) -> list[str]:
    """Of each group one name must be stored, with the expected shape, and nothing else."""
    faults = [f"{group[0]} is missing" for group in groups if not any(name in stored for name in group)]
    faults += [f"{name} has no place in the model" for name in stored.keys() - expected.keys()]
    wrong = [name for name in stored.keys() & expected.keys() if stored[name] != expected[name]]
    return faults + [f"{name} has the shape {stored[name]}; expected {expected[name]}" for name in wrong]


def _opened(folder: Path) -> dict[str, Any]:
    files = {*((read_json(folder / INDEX) or {}).get("weight_map") or {}).values()}
    files = files or {ADAPTER if (folder / ADAPTER).is_file() else WEIGHTS}
    handles = [safe_open(folder / name, framework="pt") for name in sorted(files)]
    return {key: handle for handle in handles for key in handle.keys()}  # noqa: SIM118  # a handle is no mapping
