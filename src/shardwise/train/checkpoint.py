"""Checkpoints: sharded, layout-free, hashed, committed by one rename, and read without pickle.

checkpoint-200/
  manifest.json            step, layout, job, data fingerprint, versions; shape, type and slices of every tensor; every
                           file's size and sha256
  rank-00000.safetensors   this rank's pieces of trained weights and optimizer states, and its random state
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from shardwise import __version__
from shardwise.parallel.mesh import World
from shardwise.parallel.ownership import Ownership
from shardwise.parallel.stepped import Stepped
from shardwise.spec.places import read_places
from shardwise.spec.run import CHECKPOINT_PREFIX, RunDirectory, write_json
from shardwise.train.durable import SaveError, file_fault, seal, staged, together
from shardwise.train.guards import gather
from shardwise.train.identity import refuse_another
from shardwise.train.journal import Journal
from shardwise.train.pieces import Piece, StoredSlice, num_covered, optimizer_pieces, overlap, weight_pieces
from shardwise.train.precision import type_name

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_RANDOM = "random.cpu"
_RANDOM_CUDA = "random.cuda"


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Saves and restores the state of one run.

    Attributes:
        stepped: what the optimizer steps.
        ownership: which pieces this rank writes.
        identity: of the job and data; a checkpoint of another one is not loaded.
        keep: how many committed checkpoints stay, or None for all.
    """

    run: RunDirectory
    world: World
    journal: Journal
    parameters: list[tuple[str, nn.Parameter]]
    stepped: Stepped
    optimizer: torch.optim.Optimizer
    ownership: Ownership
    identity: dict[str, Any]
    keep: int | None

    def save(self, step: int) -> bool:
        """Writes `checkpoint-STEP`; on failure nothing of it stays, and training may go on.

        Returns:
            Whether it was committed; the same on every rank.
        """
        try:
            with self.journal.progress.patient(), staged(self.world, self.run.checkpoint(step)) as folder:
                self._write(folder, step)
        except SaveError as error:
            self.journal.warn(f"checkpoint-{step} was not saved: {error}")
            return False
        if self.world.is_first:
            self._prune(newest=step)
        return True

    def _write(self, folder: Path, step: int) -> None:
        name = f"rank-{self.world.rank:05d}.safetensors"
        pieces = self._owned_pieces()
        tensors = {p.name: p.local.contiguous().cpu() for p in pieces} | _random_state(self.world.device)
        together(self.world, lambda: save_file(tensors, folder / name), what="writing a checkpoint")
        record = together(self.world, lambda: seal(folder / name), what="syncing a checkpoint")
        written = gather(self.world, {"file": name, **record, "pieces": [_describe(p) for p in pieces]})
        manifest = self._manifest(step, written)
        manifest["sha256"] = _digest(manifest)
        first = self.world.is_first
        together(
            self.world,
            lambda: write_json(folder / _MANIFEST, manifest) if first else None,
            what="writing a manifest",
        )

    def _owned_pieces(self) -> list[Piece]:
        """Pieces this rank writes: of what several ranks hold alike, only one writes."""
        weights = weight_pieces(self.parameters, counted=self.ownership.counts)
        states = optimizer_pieces(self.stepped.named, self.optimizer, counted=self.ownership.counts)
        return [piece for piece in (*weights, *states) if piece.local.numel()]

    def _manifest(self, step: int, written: list[dict[str, Any]]) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        for entry in written:
            for described in entry["pieces"]:
                known = tensors.setdefault(
                    described["name"],
                    {"shape": described["shape"], "dtype": described["dtype"], "slices": []},
                )
                window = {
                    "file": entry["file"],
                    "offsets": described["offsets"],
                    "lengths": described["lengths"],
                }
                known["slices"].append(window)
        return {
            "format_version": FORMAT_VERSION,
            "step": step,
            "layout": self.world.layout.to_json(),
            "world_size": self.world.size,
            "shardwise": __version__,
            "torch": torch.__version__,
            "identity": self.identity,
            "tensors": tensors,
            "files": {entry["file"]: {"size": entry["size"], "sha256": entry["sha256"]} for entry in written},
        }

    def _prune(self, *, newest: int) -> None:
        """Removes old checkpoints, after the new one is committed; what is later than it was skipped as damaged."""
        if self.keep is None:
            return
        older = [(step, folder) for step, folder in self.run.checkpoints() if step != newest]
        whole = [folder for step, folder in older if step < newest]
        damaged = [folder for step, folder in older if step > newest]
        for folder in whole[self.keep - 1 :] + damaged:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, step: int) -> None:
        """Removes one checkpoint that has served its purpose."""
        if self.world.is_first:
            shutil.rmtree(self.run.checkpoint(step), ignore_errors=True)

    def restore(self) -> int:
        """Loads the newest checkpoint that verifies; a bad one is named and skipped.

        Returns:
            Its step, or 0 where there is none.

        Raises:
            ModelError: the newest whole checkpoint belongs to another job or other data.
        """
        for step, folder in self.run.checkpoints():
            faults = [fault for fault in gather(self.world, self._fault(folder)) if fault]
            if faults:
                self.journal.warn(f"{folder.name} is damaged and is skipped: {faults[0]}")
                continue
            try:
                self._load(folder)
            except SaveError as error:
                self.journal.warn(f"{folder.name} is damaged and is skipped: {error}")
                continue
            self.journal.enter(f"resuming from {folder.name}")
            return step
        return 0

    def _fault(self, folder: Path) -> str | None:
        """What is wrong with a checkpoint, from this rank's share of its files."""
        try:
            manifest = _read_manifest(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"its manifest cannot be read: {error}"
        files = sorted(manifest["files"].items())
        faults = (file_fault(folder / name, record) for name, record in files[self.world.rank :: self.world.size])
        return next((fault for fault in faults if fault), None)

    def _load(self, folder: Path) -> None:
        manifest = _read_manifest(folder)
        places = read_places(self.run)
        refuse_another(manifest.get("identity"), self.identity, folder=str(folder), places=places)
        together(self.world, lambda: self._fill(folder, manifest), what=f"loading {folder.name}")

    def _fill(self, folder: Path, manifest: dict[str, Any]) -> None:
        create_states(self.optimizer)
        reader = _Reader(folder, manifest)
        for target in weight_pieces(self.parameters) + optimizer_pieces(self.stepped.named, self.optimizer):
            reader.fill(target)
        self.stepped.reread()
        if manifest["world_size"] == self.world.size:
            reader.restore_random_state(f"rank-{self.world.rank:05d}.safetensors", self.world.device)


def create_states(optimizer: torch.optim.Optimizer) -> None:
    """Makes optimizer states exist without a step that changes weights, so that they can be filled in place.

    A step with zero gradients and zero rates leaves weights as they are (0 * update) and creates every state.
    """
    rates = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.0, 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, (rate, decay) in zip(optimizer.param_groups, rates, strict=True):
        group["lr"], group["weight_decay"] = rate, decay


def _describe(p: Piece) -> dict[str, Any]:
    return {
        "name": p.name,
        "shape": list(p.shape),
        "dtype": type_name(p.local.dtype),
        "offsets": list(p.offsets),
        "lengths": list(p.local.shape),
    }


def _read_manifest(folder: Path) -> dict[str, Any]:
    whole = cast(dict[str, Any], json.loads((folder / _MANIFEST).read_text(encoding="utf-8")))
    if whole["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {whole['format_version']}; this program reads {FORMAT_VERSION}")
    manifest = {key: value for key, value in whole.items() if key != "sha256"}
    if whole["sha256"] != _digest(manifest):
        raise ValueError("it is not what was written (its sha256 differs)")
    if folder.name != f"{CHECKPOINT_PREFIX}{manifest['step']}":
        raise ValueError(f"it is of step {manifest['step']}")
    for name in manifest["files"]:
        if Path(name).name != name:
            raise ValueError(f"names {name!r}, which is not a plain file name")
    return manifest


def _digest(manifest: dict[str, Any]) -> str:
    """sha256 over the manifest's own content."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {_RANDOM: torch.get_rng_state()}
    if device.type == "cuda":
        state[_RANDOM_CUDA] = torch.cuda.get_rng_state(device)
    return state


class _Reader:
    """Fills pieces from the slices of one checkpoint."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self._folder = folder
        self._tensors: dict[str, Any] = manifest["tensors"]
        self._files: dict[str, Any] = {name: safe_open(folder / name, framework="pt") for name in manifest["files"]}

    def fill(self, target: Piece) -> None:
        """Copies every overlapping stored slice into a live tensor.

        Raises:
            ValueError: the checkpoint lacks the tensor, or part of it, or has it in another shape.
        """
        if not target.local.numel():
            return
        stored = self._tensors.get(target.name)
        if stored is None or tuple(stored["shape"]) != target.shape:
            raise ValueError(f"{target.name} of shape {target.shape} is not in the checkpoint")
        windows: list[tuple[slice, ...]] = []
        for described in self._slices(stored):
            met = overlap(target, described)
            if met is None:
                continue
            into_piece, into_stored = met
            target.local[into_piece] = self._read(described.file, target.name, into_stored).to(target.local)
            windows.append(into_piece)
        if num_covered(windows) != target.local.numel():
            raise ValueError(f"{target.name}: the checkpoint covers only part of it")

    def _slices(self, stored: dict[str, Any]) -> Iterator[StoredSlice]:
        for window in stored["slices"]:
            if window["file"] not in self._files:
                raise ValueError(f"the manifest names the unknown file {window['file']!r}")
            yield StoredSlice(file=window["file"], offsets=tuple(window["offsets"]), lengths=tuple(window["lengths"]))

    def _read(self, file: str, name: str, window: tuple[slice, ...]) -> torch.Tensor:
        handle = self._files[file]
        if not window:
            return handle.get_tensor(name)
        return handle.get_slice(name)[window]

    def restore_random_state(self, file: str, device: torch.device) -> None:
        """Puts this rank's random generators where they were."""
        handle = self._files[file]
        try:
            torch.set_rng_state(handle.get_tensor(_RANDOM))
            if device.type == "cuda":
                torch.cuda.set_rng_state(handle.get_tensor(_RANDOM_CUDA), device)
        except SafetensorError:
            return
