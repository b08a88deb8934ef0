"""Log-probabilities under the reference, computed once, before the first step."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
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
from shardwise.train.preference.reference import LogProbsOf, file_of, log_probabilities, read_logs, write_logs
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
    """Fills in what is known, where the job does not compare with its own model as it trains. The
    weights are those that training begins with, before a checkpoint is read: a run that goes on
    finds the same. `keep`: beside the data, for other runs. Raises UnsupportedError: the model that
    is named as the reference has other tokens."""
    job, stated = rows.job, preferences.spec.reference
    if job.objective not in WITH_REFERENCE or job.compares_with_itself or stated == "none":
        return
    if stated in ("auto", "precomputed"):
        _know_parts(preferences, rows, step, content=model.content, journal=journal, keep=keep)
        return
    other = _reference_model(rows, stated, step=step)
    if other.shape.vocab_size < model.shape.vocab_size:
        raise UnsupportedError(
            f"preference.reference: {stated} has {other.shape.vocab_size} tokens and the model "
            f"{model.shape.vocab_size}; name a model with the same tokenizer"
        )
    its = GradientAccumulator(
        spread=other.spread,
        world=step.world,
        keeps_casts=step.keeps_casts,
        scale=step.scale,
        preferences=preferences,
    )
    _know_parts(preferences, rows, its, content=other.content, journal=journal, keep=keep)
    del its, other
    gc.collect()


def _reference_model(rows: SeenRows, stated: str, *, step: GradientAccumulator) -> TrainedModel:
    folder = find_model_folder(stated, revision=None)
    job = rows.job.model_copy(update={"model": stated, "method": "full", "lora": None})
    return build_model(job, rows.execution, world=step.world, revision=hub_revision(stated, folder=folder))


def _know_parts(
    preferences: Preferences,
    rows: SeenRows,
    step: GradientAccumulator,
    *,
    content: dict[str, str],
    journal: Journal,
    keep: bool,
) -> None:
    def log_probs_of(micros: Sequence[MicroBatch]) -> list[torch.Tensor | None]:
        return step.outputs(micros, [preferences.row_log_probs(micro) for micro in micros], adapters_off=True)

    for part in filter(None, (preferences.train, preferences.evaluation)):
        wanted = rows.seen() if part is preferences.train else np.arange(len(part.data))
        precision = rows.execution.precision
        path = file_of(part.data.folder, model=content, fingerprint=rows.fingerprint, precision=precision)
        _know(part, wanted, log_probs_of, path=path, step=step, journal=journal, keep=keep)
        if preferences.spec.loss_type == ["kto"]:
            every = [np.arange(len(part.data))] if part is preferences.evaluation else [*rows.batches.ids_from(0)]
            _know_mismatched(preferences, part, every, step, path=path if keep else None, journal=journal)


def _know_mismatched(
    preferences: Preferences,
    part: Part,
    batches: Sequence[npt.NDArray[np.int64]],
    step: GradientAccumulator,
    *,
    path: Path | None,
    journal: Journal,
) -> None:
    """Of each batch of a run, whose order is one of the file's keys."""
    order = hashlib.sha256(b"".join(ids.tobytes() + b"/" for ids in batches)).hexdigest()[:16]
    file = None if path is None else path.with_name(f"{path.stem}-{order}.bin")
    sums = np.full((len(batches), 1), np.nan, np.float32)
    if file is not None:
        sums = read_logs(file, shape=(len(batches), 1), world=step.world).copy()
    part.known_mismatched = {}
    for number, ids in enumerate(batches):
        if np.isnan(sums[number, 0]):
            sums[number, 0] = preferences.mismatched(part, ids, step.outputs, adapters_off=True).item()
            journal.progress.touch()
        part.known_mismatched[ids.tobytes()] = float(sums[number, 0])
    if file is not None and step.world.is_first:
        journal.note(lambda: write_logs(file, sums))


def _know(
    part: Part,
    wanted: npt.NDArray[np.int64],
    log_probs_of: LogProbsOf,
    *,
    path: Path,
    step: GradientAccumulator,
    journal: Journal,
    keep: bool,
) -> None:
    shape = len(part.data), part.data.sides
    logs = read_logs(path, shape=shape, world=step.world).copy() if keep else np.full(shape, np.nan, np.float32)
    missing = wanted[np.isnan(logs[wanted]).any(1)]
    if len(missing):
        journal.say(f"log-probabilities of {len(missing):,} samples under the reference")
        make = partial(log_probabilities, world=step.world, passed=journal.progress.touch)
        logs[missing] = make(part.batcher, missing, log_probs_of)
        if keep and step.world.is_first:
            journal.note(lambda: write_logs(path, logs))
    part.known = logs
