"""Reads a checkpoint: verified manifest, pieces of live tensors its slices fill, random generators.

A piece is a name (Hugging Face's, for any layout), a global shape, and the window of this rank.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import nn

from shardwise.models.load import local_windows
from shardwise.models.weights import read_part
from shardwise.parallel.mesh import World
from shardwise.parallel.optimizer.stepped import Stepped
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.axes import AXES
from shardwise.spec.run import CHECKPOINT_PREFIX
from shardwise.train.precision import type_name

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class TensorShard:
    """The part of one named tensor that a rank holds. `shape`: global shape; `offsets`: where the
    part begins in each dim; `local`: the part itself, sharing storage with the live tensor; `key`:
    its name in a rank's file, which may have several parts of a tensor."""

    name: str
    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: torch.Tensor

    def to_json(self) -> dict[str, Any]:
        """As a manifest describes it."""
        window = {"offsets": list(self.offsets), "lengths": list(self.local.shape)}
        window |= {"key": self.key} if self.key != self.name else {}
        return {"name": self.name, "shape": list(self.shape), "dtype": type_name(self.local.dtype), **window}


def pieces(name: str, tensor: torch.Tensor, *, local: Any = None, of: Any = None) -> list[TensorShard]:
    """The local part of a plain or sharded tensor, or of one with the same shape and placement, in
    stretches of rows; `of`: the parameter that it belongs to."""
    windows = local_windows(tensor, getattr(tensor if of is None else of, "parts_of_rows", None))
    part: torch.Tensor = local_part(tensor) if local is None else local.detach()
    split = part.split([lengths[0] for _, lengths in windows]) if windows[1:] else [part]
    return [
        TensorShard(name=name, key=f"{name}#{n}" if n else name, shape=tuple(tensor.shape), offsets=offsets, local=own)
        for n, ((offsets, _), own) in enumerate(zip(windows, split, strict=False))
    ]


def live_pieces(
    parameters: Iterable[tuple[str, nn.Parameter]],
    stepped: Stepped,
    optimizer: torch.optim.Optimizer,
    *,
    counted: Callable[[str, torch.Tensor], bool] = lambda *_: True,
) -> list[TensorShard]:
    """Pieces of trained weights and optimizer states (`optimizer.STATE.PARAMETER`) that count."""
    known = dict(parameters)
    weights = [pieces(name, p) for name, p in known.items() if p.requires_grad and counted(name, p)]
    states = [one for one in stepped.states(optimizer) if counted(one[0], one[3])]
    weights += [pieces(f"optimizer.{k}.{name}", at, local=state, of=known[name]) for name, k, state, at in states]
    return [one for several in weights for one in several]


def overlap(
    target: TensorShard, offsets: Sequence[int], lengths: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """The overlap of a piece and a stored window: (slices into piece, slices into window)."""
    dims = zip(target.offsets, target.local.shape, offsets, lengths, strict=True)
    both = [(at, begin, max(at, begin), min(at + length, begin + count)) for at, length, begin, count in dims]
    if any(first >= end for _, _, first, end in both):
        return None
    into_piece = tuple(slice(first - at, end - at) for at, _, first, end in both)
    return into_piece, tuple(slice(first - begin, end - begin) for _, begin, first, end in both)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint's folder, without its own sha256; various errors if damaged."""
    whole = cast(dict[str, Any], json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    if whole["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {whole['format_version']}; this program reads {FORMAT_VERSION}")
    manifest = {key: value for key, value in whole.items() if key != "sha256"}
    if whole["sha256"] != _digest(manifest):
        raise ValueError("it is not what was written (its sha256 differs)")
    if folder.name != f"{CHECKPOINT_PREFIX}{manifest['step']}":
        raise ValueError(f"it is of step {manifest['step']}")
    # A name with folders in it could lead out of the checkpoint.
    for name in manifest["files"]:
        if Path(name).name != name:
            raise ValueError(f"names {name!r}, which is not a plain file name")
    return manifest


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest with the version of its format, and the sha256 of all of it."""
    whole = {"format_version": FORMAT_VERSION, **manifest}
    return {**whole, "sha256": _digest(whole)}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


class Reader:
    """Fills pieces from the slices of one checkpoint."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._tensors: dict[str, Any] = manifest["tensors"]
        self._files: dict[str, Any] = {name: safe_open(folder / name, framework="pt") for name in manifest["files"]}

    def has(self, name: str) -> bool:
        """Whether there is a tensor of a name."""
        return name in self._tensors

    def fill(self, target: TensorShard) -> None:
        """Copies all overlapping stored slices into a live tensor; ValueError if any is missing."""
        if not target.local.numel():
            return
        stored = self._tensors.get(target.name)
        if stored is None or tuple(stored["shape"]) != target.shape:
            raise ValueError(f"{target.name} of shape {target.shape} is not in the checkpoint")
        covered = 0
        for described in stored["slices"]:
            if described["file"] not in self._files:
                raise ValueError(f"the manifest names the unknown file {described['file']!r}")
            met = overlap(target, described["offsets"], described["lengths"])
            if met is not None:
                into_piece, into_stored = met
                part = read_part(self._files[described["file"]], described.get("key", target.name), into_stored)
                target.local[into_piece] = part.to(target.local)
                covered += part.numel()
        # Stored slices do not overlap, so that a sum tells whether all is covered.
        if covered != target.local.numel():
            raise ValueError(f"{target.name}: the checkpoint covers only part of it")

    def restore_random(self, file: str, *, written: dict[str, Any], world: World, seed: int, step: int) -> None:
        """Restores this rank's generators from its file if its layout is the one `written`.
        Otherwise, or where the file lacks one, reseeds: ranks with slices of the same block must
        draw alike, ranks with different samples must not."""
        names = [_ON_HOST, _ON_GPU] if world.device.type == "cuda" else [_ON_HOST]
        same, handle = tuple(written[axis] for axis in AXES) == world.layout.degrees, self._files.get(file)
        if not same or handle is None or not {*names} <= {*handle.keys()}:
            drawn = hashlib.sha256(f"{seed} {world.stream} {step}".encode()).digest()
            torch.manual_seed(int.from_bytes(drawn[:8], "little") >> 1)
            return
        torch.set_rng_state(handle.get_tensor(_ON_HOST))
        if _ON_GPU in names:
            torch.cuda.set_rng_state(handle.get_tensor(_ON_GPU), world.device)


_ON_HOST, _ON_GPU = "random.cpu", "random.cuda"


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this rank's generators, by the names they are stored under."""
    on_gpu = {_ON_GPU: torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {_ON_HOST: torch.get_rng_state(), **on_gpu}
