"""Log-probabilities under the reference, computed before the first step, kept beside the data."""

import gc
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from shardwise.data.micro_batches import FILLER, Batches
from shardwise.errors import UnsupportedError
from shardwise.models.load import find_model_folder
from shardwise.parallel.mesh import World
from shardwise.spec.job.keys import Job
from shardwise.spec.job.preference import WITH_REFERENCE
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import hub_revision
from shardwise.train.model import TrainedModel, build_model
from shardwise.train.preference.preferences import Logs, Part, Preferences
from shardwise.train.step import GradientAccumulator
from shardwise.train.watching.journal import Journal


@dataclass(frozen=True, kw_only=True)
class KnownReference:
    """What is known of the reference, and kept (`keep`) beside the data of that `fingerprint`."""

    preferences: Preferences
    execution: Execution
    batches: Batches
    fingerprint: str
    journal: Journal
    keep: bool

    def fill(self, step: GradientAccumulator, *, model: TrainedModel) -> None:
        """Fills in what is known, by the weights that training begins with, before a checkpoint is
        read. Raises UnsupportedError: the model that is named has other tokens."""
        job, stated = self.preferences.job, self.preferences.spec.reference
        if job.objective not in WITH_REFERENCE or job.compares_with_itself or stated == "none":
            return
        if stated in ("auto", "precomputed"):
            self._fill_parts(step, model.content, job)
            return
        folder = find_model_folder(stated, revision=None)
        other_job = job.model_copy(update={"model": stated, "method": "full", "lora": None})
        revision = hub_revision(stated, folder=folder)
        other = build_model(other_job, self.execution, world=step.world, revision=revision)
        if other.shape.vocab_size < model.shape.vocab_size:
            raise UnsupportedError(
                f"preference.reference: {stated} has {other.shape.vocab_size} tokens and the model "
                f"{model.shape.vocab_size}; name a model with the same tokenizer"
            )
        its = replace(step, spread=other.spread, balance=None, leaves_padding=False)
        self._fill_parts(its, other.content, other_job)
        del its, other
        gc.collect()

    def _fill_parts(self, step: GradientAccumulator, content: dict[str, str], job: Job) -> None:
        """Of the rows to train on and to evaluate on, by a model with files of that `content`."""
        train, evaluation = self.preferences.train, self.preferences.evaluation
        read = (job.rope_scaling and job.rope_scaling.stated, job.method == "qlora", job.quantises_experts)
        described = {"model": content, "data": self.fingerprint, "precision": self.execution.precision, "read": read}
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
        for part in filter(None, (train, evaluation)):
            samples, path = np.arange(len(part.data)), part.data.folder / f"reference-{key}.bin"
            self._fill(part, self._seen() if part is train else samples, path, step)
            if self.preferences.spec.loss_type == ["kto"]:
                batches = [samples] if part is evaluation else [*self.batches.ids_from(0)]
                self._fill_mismatched(part, batches, path, step)

    def _seen(self) -> npt.NDArray[np.int64]:
        """The samples to train on that some step sees, ascending."""
        per_epoch = self.batches.steps_per_epoch
        few = [ids for ids, _ in zip(self.batches.ids_from(0), range(per_epoch * 2), strict=False)]
        if self.batches.total_steps > len(few):  # sources with a part of a weight show other rows each epoch
            return np.arange(len(self.batches.batcher.data))
        return np.unique(np.concatenate(few))

    def _fill(self, part: Part, wanted: npt.NDArray[np.int64], path: Path, step: GradientAccumulator) -> None:
        logs = self._kept(path, (len(part.data), part.data.sides), step.world)
        missing = wanted[np.isnan(logs[wanted]).any(1)]
        if len(missing):
            self.journal.say(f"log-probabilities of {len(missing):,} samples under the reference")
            logs[missing] = self._log_probabilities(part, missing, step)
            self._write(path, logs, step.world)
        part.known = logs

    def _fill_mismatched(
        self, part: Part, batches: Sequence[npt.NDArray[np.int64]], path: Path, step: GradientAccumulator
    ) -> None:
        """Of each batch of a run, whose order is one of the file's keys."""
        order = hashlib.sha256(b"".join(ids.tobytes() + b"/" for ids in batches)).hexdigest()[:16]
        file = path.with_name(f"{path.stem}-{order}.bin")
        sums = self._kept(file, (len(batches), 1), step.world)
        part.known_mismatched = {}
        for number, ids in enumerate(batches):
            if np.isnan(sums[number, 0]):
                made = self.preferences.mismatched(part, ids, step.outputs, adapters_off=True)
                sums[number, 0] = made.item()
                self.journal.progress.touch()
            part.known_mismatched[ids.tobytes()] = float(sums[number, 0])
        self._write(file, sums, step.world)

    def _log_probabilities(self, part: Part, ids: npt.NDArray[np.int64], step: GradientAccumulator) -> Logs:
        """Of some samples' rows, [samples, sides], alike on all ranks."""
        data = part.data
        place = np.full(len(data), -1, np.int64)
        place[ids] = np.arange(len(ids))
        found = torch.zeros(len(ids), data.sides, dtype=torch.float32, device=step.world.device)
        # Rows of about one length stand together, so that little is padding.
        ordered = ids[np.argsort(-data.lengths[ids].astype(np.int64), kind="stable")]
        for batch in part.batcher.forwards(ordered):
            micros = batch.micro_batches
            for micro, logs in zip(micros, step.outputs(micros, adapters_off=True), strict=True):
                own = [(at, place[sample]) for at, sample in enumerate(micro.sample_ids) if sample != FILLER]
                if logs is not None and own:
                    at, to = zip(*own, strict=True)
                    found[list(to)] = logs.view(-1, data.sides)[list(at)]
            self.journal.progress.touch()
        # Peers of tensor and context parallel found the same, and may not add it twice.
        if not step.world.is_first_of_row:
            found.zero_()
        dist.all_reduce(found)
        return found.cpu().numpy()

    def _kept(self, path: Path, shape: tuple[int, int], world: World) -> Logs:
        """What earlier runs have written there, as rank 0 finds it; NaN for what is not known."""
        found = torch.full(shape, torch.nan, dtype=torch.float32)
        if not self.keep:
            return found.numpy()
        if world.is_first and path.is_file() and path.stat().st_size == found.numel() * 4:
            found = torch.from_numpy(np.fromfile(path, "<f4").reshape(shape))
        dist.broadcast(found, 0, group=world.control)
        return found.numpy()

    def _write(self, path: Path, logs: Logs, world: World) -> None:

        def write() -> None:
            partial = path.with_suffix(f".{os.getpid()}")
            logs.astype("<f4").tofile(partial)
            partial.rename(path)

        if self.keep and world.is_first:
            self.journal.note(write)
