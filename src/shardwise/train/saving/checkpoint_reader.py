"""Reads a checkpoint: its verified manifest, and slices that fill live tensors."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open

from shardwise.models.weights import read_part
from shardwise.spec.run import CHECKPOINT_PREFIX
from shardwise.train.saving.pieces import TensorShard, overlap

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint's folder, without its own sha256; various errors if it is not what was written."""
    whole = cast(dict[str, Any], json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    if whole["format_version"] != FORMAT_VERSION:
        raise ValueError(f"format version {whole['format_version']}; this program reads {FORMAT_VERSION}")
    manifest = {key: value for key, value in whole.items() if key != "sha256"}
    if whole["sha256"] != digest(manifest):
        raise ValueError("it is not what was written (its sha256 differs)")
    if folder.name != f"{CHECKPOINT_PREFIX}{manifest['step']}":
        raise ValueError(f"it is of step {manifest['step']}")
    for name in manifest["files"]:
        if Path(name).name != name:
            raise ValueError(f"names {name!r}, which is not a plain file name")
    return manifest


def digest(manifest: dict[str, Any]) -> str:
    """sha256 over the manifest's own content."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


class Reader:
    """Fills pieces from the slices of one checkpoint."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._tensors: dict[str, Any] = manifest["tensors"]
        self._files: dict[str, Any] = {name: safe_open(folder / name, framework="pt") for name in manifest["files"]}

    def fill(self, target: TensorShard) -> None:
        """Copies every overlapping stored slice into a live tensor; ValueError if not all of it is stored."""
        if not target.local.numel():
            return
        stored = self._tensors.get(target.name)
        if stored is None or tuple(stored["shape"]) != target.shape:
            raise ValueError(f"{target.name} of shape {target.shape} is not in the checkpoint")
        windows: list[tuple[slice, ...]] = []
        for described in stored["slices"]:
            if described["file"] not in self._files:
                raise ValueError(f"the manifest names the unknown file {described['file']!r}")
            met = overlap(target, described["offsets"], described["lengths"])
            if met is None:
                continue
            into_piece, into_stored = met
            part = read_part(self._files[described["file"]], target.name, into_stored)
            target.local[into_piece] = part.to(target.local)
            windows.append(into_piece)
        covered = sum(math.prod(part.stop - part.start for part in window) for window in windows)
        if covered != target.local.numel():
            raise ValueError(f"{target.name}: the checkpoint covers only part of it")

    def tensors_of(self, file: str, names: Collection[str]) -> dict[str, torch.Tensor] | None:
        """Whole tensors of one rank's file, or None where it lacks one of them."""
        handle = self._files.get(file)
        if handle is None or not {*names} <= {*handle.keys()}:
            return None
        return {name: handle.get_tensor(name) for name in names}
