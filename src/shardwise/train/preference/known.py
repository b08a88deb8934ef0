"""Log-probabilities under the reference, computed once, before the first step."""

import gc
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from shardwise.data.batches import Batches
from shardwise.data.micro_batches import MicroBatch
from shardwise.errors import UnsupportedError
from shardwise.models.load import find_model_folder
from shardwise.spec.job.keys import Job
from shardwise.spec.job.preference import WITH_REFERENCE
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import hub_revision
from shardwise.train.model import TrainedModel, build_model
from shardwise.train.preference.preferences import Part, Preferences
from shardwise.train.preference.reference import Logs, file_of, log_probabilities, read_logs, write_logs
from shardwise.train.step import GradientAccumulator
from shardwise.train.watching.journal import Journal


@dataclass(frozen=True, kw_only=True)
class SeenRows:
    """Which rows a run sees. `fingerprint`: of the prepared data."""

    job: Job
    execution: Execution
    fingerprint: str
    batches: Batches

    def seen(self) -> npt.NDArray[np.int64]:
        """The samples to train on that some step sees, ascending."""
        per_epoch = self.batches.steps_per_epoch
        few = [ids for ids, _ in zip(self.batches.ids_from(0), range(per_epoch * 2), strict=False)]
        if self.batches.total_steps > len(few):  # sources with a part of a weight show other rows each epoch
            return np.arange(len(self.batches.batcher.data))
        return np.unique(np.concatenate(few))


def know_reference(
    preferences: Preferences,
    step: GradientAccumulator,
    rows: SeenRows,
    *,
    model: TrainedModel,
    journal: Journal,
    keep: bool,
) -> None:
    """Fills in what is known, by the weights that training begins with, before a checkpoint is
    read: a run that goes on finds the same. `keep`: beside the data, for other runs. Raises
    UnsupportedError: the model that is named has other tokens."""
    job, stated = rows.job, preferences.spec.reference
    if job.objective not in WITH_REFERENCE or job.compares_with_itself or stated == "none":
        return
    if stated in ("auto", "precomputed"):
        _Knowing(preferences, rows, step, model.content, journal, keep).parts()
        return
    folder = find_model_folder(stated, revision=None)
    other_job = job.model_copy(update={"model": stated, "method": "full", "lora": None})
    revision = hub_revision(stated, folder=folder)
    other = build_model(other_job, rows.execution, world=step.world, revision=revision)
    if other.shape.vocab_size < model.shape.vocab_size:
        raise UnsupportedError(
            f"preference.reference: {stated} has {other.shape.vocab_size} tokens and the model "
            f"{model.shape.vocab_size}; name a model with the same tokenizer"
        )
    its = GradientAccumulator(
        spread=other.spread, world=step.world, keeps_casts=step.keeps_casts, scale=step.scale, preferences=preferences
    )
    _Knowing(preferences, rows, its, other.content, journal, keep).parts()
    del its, other
    gc.collect()


@dataclass(frozen=True)
class _Knowing:
    """Computes with `step`, whose model has files of that `content`."""

    preferences: Preferences
    rows: SeenRows
    step: GradientAccumulator
    content: dict[str, str]
    journal: Journal
    keep: bool

    def parts(self) -> None:
        """Of the rows to train on and to evaluate on."""
        train, evaluation = self.preferences.train, self.preferences.evaluation
        for part in filter(None, (train, evaluation)):
            samples, fingerprint = np.arange(len(part.data)), self.rows.fingerprint
            precision = self.rows.execution.precision
            path = file_of(part.data.folder, model=self.content, fingerprint=fingerprint, precision=precision)
            self._know(part, self.rows.seen() if part is train else samples, path)
            if self.preferences.spec.loss_type == ["kto"]:
                batches = [samples] if part is evaluation else [*self.rows.batches.ids_from(0)]
                self._know_mismatched(part, batches, path)

    def _know(self, part: Part, wanted: npt.NDArray[np.int64], path: Path) -> None:
        logs = self._kept(path, (len(part.data), part.data.sides))
        missing = wanted[np.isnan(logs[wanted]).any(1)]
        if len(missing):
            self.journal.say(f"log-probabilities of {len(missing):,} samples under the reference")
            touch = self.journal.progress.touch
            logs[missing] = log_probabilities(
                part.batcher, missing, self._log_probs_of, world=self.step.world, passed=touch
            )
            self._write(path, logs)
        part.known = logs

    def _know_mismatched(self, part: Part, batches: Sequence[npt.NDArray[np.int64]], path: Path) -> None:
        """Of each batch of a run, whose order is one of the file's keys."""
        order = hashlib.sha256(b"".join(ids.tobytes() + b"/" for ids in batches)).hexdigest()[:16]
        file = path.with_name(f"{path.stem}-{order}.bin")
        sums = self._kept(file, (len(batches), 1))
        part.known_mismatched = {}
        for number, ids in enumerate(batches):
            if np.isnan(sums[number, 0]):
                made = self.preferences.mismatched(part, ids, self.step.outputs, adapters_off=True)
                sums[number, 0] = made.item()
                self.journal.progress.touch()
            part.known_mismatched[ids.tobytes()] = float(sums[number, 0])
        self._write(file, sums)

    def _log_probs_of(self, micros: Sequence[MicroBatch]) -> list[torch.Tensor | None]:
        row_log_probs = [self.preferences.row_log_probs(micro) for micro in micros]
        return self.step.outputs(micros, row_log_probs, adapters_off=True)

    def _kept(self, path: Path, shape: tuple[int, int]) -> Logs:
        """What earlier runs have written there; NaN for what is not known."""
        if not self.keep:
            return np.full(shape, np.nan, np.float32)
        return read_logs(path, shape=shape, world=self.step.world).copy()

    def _write(self, path: Path, logs: Logs) -> None:
        if self.keep and self.step.world.is_first:
            self.journal.note(lambda: write_logs(path, logs))
