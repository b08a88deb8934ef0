"""Checkpoints: sharded, layout-independent, hashed, committed by one rename, read without pickle.

checkpoint-200/
  manifest.json            step, layout, identity; dtype, shape, slices of tensors; files' sha256
  rank-00000.safetensors   this rank's parts of weights, optimizer states and its random state
"""

import importlib.metadata
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise import __version__
from shardwise.errors import ModelError, Problem, quoted
from shardwise.parallel.mesh import World
from shardwise.parallel.optimizer.stepped import Stepped
from shardwise.parallel.ownership import Ownership
from shardwise.spec.job.keys import HOW_IT_RUNS, LENGTH, Job, differences
from shardwise.spec.job.places import Places, read_places
from shardwise.spec.result import file_fault
from shardwise.spec.run import CHECKPOINT_PREFIX, RunDirectory, write_json
from shardwise.train.guards.checks import gather
from shardwise.train.precision import LossScale
from shardwise.train.saving.atomic import SaveError, commit_stage, open_stage, removed_on_error, together
from shardwise.train.saving.background import HostBuffers, in_background
from shardwise.train.saving.checkpoint_reader import MANIFEST, Reader, live_pieces, random_state, read_manifest, signed
from shardwise.train.saving.safetensors_writer import write_tensors
from shardwise.train.watching.journal import Journal


def identity_of(job: Job, *, model: Mapping[str, str], data: str) -> dict[str, Any]:
    """A run's identity as JSON; `model`: hashes of its files by name, `data`: its fingerprint."""
    plain = job.to_json()
    for key in HOW_IT_RUNS | LENGTH:
        section, _, name = key.rpartition(".")
        (plain[section] if section else plain).pop(name, None)
    if not (job.quantises_experts and plain["train"]["quantize_experts"] is True):
        del plain["train"]["quantize_experts"]  # as in runs that began before the key was there
    # Of the libraries that decide how text becomes tokens, as in the key of prepared data.
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "tokenizers")}
    return json.loads(json.dumps({"job": plain, "model": dict(model), "data": data, "versions": versions}))


def refuse_another(written: Mapping[str, Any], now: Mapping[str, Any], *, folder: str, places: Places) -> None:
    """Raises ModelError with each key or version that differs, or the model's files or the data."""
    if written == now:
        return
    of_job = sorted(differences(written["job"], now["job"]))
    found = [
        (places.where(*key.split(".")), f"{key} is {quoted(new)}, and {folder} was written with {quoted(old)}")
        for key, old, new in of_job
    ]
    versions = sorted(differences(written["versions"], now["versions"]))
    found += [(folder, f"was written with {name} {old}, and {new} is installed") for name, old, new in versions]
    if not any(key == "model" for key, _, _ in of_job):
        message = f"of this model is another file than {folder} was written with, under the same name"
        others = [name for name, _, _ in sorted(differences(written["model"], now["model"]))]
        found += [(places.where("model"), f"{name} {message}") for name in others[:1]]
    changed = "rows, their order in files, the tokenizer's files or the chat template have changed"
    message = f"data.path: {folder} was written from other data by the same job: {changed}"
    found = found or [(places.where("data", "path"), message)]
    elsewhere = "bring back what it was written with, or use another output_dir"
    raise ModelError([Problem(where=where, message=f"{message}; {elsewhere}") for where, message in found])


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """A checkpoint that this rank is writing: in a temporary `folder`; `size`: bytes to write."""

    step: int
    folder: Path
    pieces: list[dict[str, Any]]
    scale: dict[str, float]
    size: int
    file: Future[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Saves and restores the state of one run.

    A step waits for a copy to host memory; a thread writes it, and a later step commits it when all
    ranks have written. `ownership`: which pieces this rank writes; `identity`: of job, model and
    data, a checkpoint of another one is refused; `seed`: from which random generators start on
    another layout; `keep`: how many stay, or None for all."""

    run: RunDirectory
    world: World
    journal: Journal
    parameters: list[tuple[str, nn.Parameter]]
    stepped: Stepped
    optimizer: torch.optim.Optimizer
    scale: LossScale
    ownership: Ownership
    identity: dict[str, Any]
    seed: int
    keep: int | None
    _writing: list[_Writing] = field(default_factory=list[_Writing])
    _copies: HostBuffers = field(default_factory=HostBuffers)

    def save(self, step: int) -> bool:
        """Writes `checkpoint-STEP` and waits for it; whether it was committed, on all ranks."""
        return self.begin(step) and self.commit()

    def begin(self, step: int) -> bool:
        """Copies the state and begins to write it, after an earlier one; whether it began."""
        self.commit()
        try:
            folder = open_stage(self.world, self.run.checkpoint(step))
        except SaveError as error:
            self.journal.warn(f"checkpoint-{step} was not saved: {error}")
            return False
        pieces = live_pieces(self.parameters, self.stepped, self.optimizer, counted=self.ownership.counts)
        pieces = [piece for piece in pieces if piece.local.numel()]
        # Training goes on and changes the live tensors: a copy is written.
        tensors = self._copies.of({p.key: p.local for p in pieces}, device=self.world.device)
        tensors |= random_state(self.world.device)
        writing = _Writing(
            step=step,
            folder=folder,
            pieces=[p.to_json() for p in pieces],
            scale=self.scale.to_json(),
            size=sum(tensor.nbytes for tensor in tensors.values()),
            file=in_background(lambda: write_tensors(folder / _file_of(self.world.rank), tensors)),
        )
        self._writing.append(writing)
        return True

    @property
    def is_written(self) -> bool:
        """Whether this rank has nothing left to write."""
        return all(writing.file.done() for writing in self._writing)

    def commit(self) -> bool:
        """Waits for all ranks to write the pending checkpoint, and commits it; False on failure."""
        if not self._writing:
            return True
        writing = self._writing.pop()
        with self.journal.progress.patient():
            try:
                with removed_on_error(writing.folder):
                    self._write_manifest(writing)
                    commit_stage(self.world, writing.folder, self.run.checkpoint(writing.step))
            except SaveError as error:
                self.journal.warn(f"checkpoint-{writing.step} was not saved: {error}")
                return False
            finally:
                self._copies.release(self.world.device)
        if self.world.is_first:
            self._prune(newest=writing.step)
        return True

    def _write_manifest(self, writing: _Writing) -> None:
        size = sum(gather(self.world, writing.size))
        room = {"into": writing.folder, "size": size}
        record = together(self.world, writing.file.result, what="writing a checkpoint", **room)
        written = gather(self.world, {"file": _file_of(self.world.rank), **record, "pieces": writing.pieces})
        tensors: dict[str, Any] = {}
        for entry in written:
            for piece in entry["pieces"]:
                of_all = {"shape": piece["shape"], "dtype": piece["dtype"], "slices": []}
                window = {key: piece[key] for key in ("offsets", "lengths", "key") if key in piece}
                tensors.setdefault(piece["name"], of_all)["slices"].append({"file": entry["file"], **window})
        manifest = {
            "step": writing.step,
            "loss_scale": writing.scale,
            "layout": self.world.layout.to_json(),
            "world_size": self.world.size,
            "shardwise": __version__,
            "torch": torch.__version__,
            "identity": self.identity,
            "tensors": tensors,
            "files": {entry["file"]: {"size": entry["size"], "sha256": entry["sha256"]} for entry in written},
        }

        def complete() -> None:
            for file, recorded in manifest["files"].items():
                path = writing.folder / file
                if not path.is_file() or path.stat().st_size != recorded["size"]:
                    raise FileNotFoundError(
                        f"{file}, which another rank wrote, is not here as it was written; all ranks must share "
                        f"{writing.folder.parent}"
                    )
            write_json(writing.folder / MANIFEST, signed(manifest))

        on_first = complete if self.world.is_first else lambda: None
        together(self.world, on_first, what="writing a manifest", **room)

    def _prune(self, *, newest: int) -> None:
        """Removes old checkpoints after a commit; any after the newest were skipped as damaged."""
        if self.keep is None:
            return
        older = [folder for step, folder in self.run.checkpoints() if step < newest]
        damaged = [folder for step, folder in self.run.checkpoints() if step > newest]
        for folder in older[self.keep - 1 :] + damaged:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self) -> int:
        """Loads the newest checkpoint that verifies, skipping damaged ones; its step, or 0. Raises
        ModelError: it belongs to another job or data; SaveError: there are some and none loads."""
        faults: list[str] = []
        self.journal.turn_to("reading checkpoints")
        for name in self.run.unfinished():
            self.journal.warn(f"{name} is unfinished (it has no {MANIFEST}) and is skipped")
        for step in gather(self.world, [step for step, _ in self.run.checkpoints()])[0]:  # as rank 0 sees them
            folder = self.run.checkpoint(step)
            fault = self._load(folder)
            if fault is None:
                self.journal.enter(f"resuming from {folder.name}")
                return step
            self.journal.warn(f"{folder.name} cannot be loaded and is skipped: {fault}")
            faults.append(f"{folder.name}: {fault}")
        if faults:
            raise SaveError(
                f"no checkpoint of {self.run.root} can be loaded, and training does not begin anew over them "
                f"({'; '.join(faults)}). Put back what is missing and run the same command again, or remove "
                f"{self.run.root}/{CHECKPOINT_PREFIX}* to train from the beginning"
            )
        return 0

    def _fault(self, folder: Path) -> str | None:
        """What is wrong with this rank's share of a checkpoint's files."""
        if not folder.is_dir():
            return f"rank {self.world.rank} does not see {folder}; is it on a disk that all ranks share?"
        try:
            files = sorted(read_manifest(folder)["files"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"its manifest cannot be read: {error}"
        # Hashing is slow: each rank reads its share, and hears the others' faults.
        mine = files[self.world.rank :: self.world.size]
        faults = ((name, file_fault(folder / name, record)) for name, record in mine)
        return next((f"{name} {fault}" for name, fault in faults if fault), None)

    def _load(self, folder: Path) -> str | None:
        """Why a checkpoint does not load, alike on all ranks, or None."""
        faults = [fault for fault in gather(self.world, self._fault(folder)) if fault]
        if faults:
            return faults[0]
        manifest = read_manifest(folder)
        refuse_another(manifest["identity"], self.identity, folder=str(folder), places=read_places(self.run))
        try:
            reader = together(self.world, lambda: Reader(folder, manifest), what=f"opening {folder.name}")
            together(self.world, lambda: self._fill(reader, manifest), what=f"loading {folder.name}")
        except SaveError as error:
            return str(error)
        return None

    def _fill(self, reader: Reader, manifest: dict[str, Any]) -> None:
        create_states(self.optimizer)
        # A weight has none that had no gradient until then: of code that short rows do not reach.
        kept = {name for name, key, *_ in self.stepped.states(self.optimizer) if reader.has(f"optimizer.{key}.{name}")}
        for _, parameter in (pair for pair in self.stepped.named if pair[0] not in kept):
            self.optimizer.state.pop(parameter, None)
        for target in live_pieces(self.parameters, self.stepped, self.optimizer):
            reader.fill(target)
        self.stepped.reread()
        self.scale.restore(manifest.get("loss_scale"))
        file, step = _file_of(self.world.rank), manifest["step"]
        reader.restore_random(file, written=manifest["layout"], world=self.world, seed=self.seed, step=step)


def create_states(optimizer: torch.optim.Optimizer) -> None:
    """Creates optimizer states, to be filled in place, by a step with zero gradients and rates."""
    rates = [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = 0.0, 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, (rate, decay) in zip(optimizer.param_groups, rates, strict=True):
        group["lr"], group["weight_decay"] = rate, decay


def _file_of(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"
