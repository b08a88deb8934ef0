"""The reference's part of a step of preferences, the KL of a batch, figures."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from shardwise.data.micro_batches import FILLER, Batcher, GlobalBatch, MicroBatch
from shardwise.data.store import IGNORED, PreparedData
from shardwise.parallel.mesh import World, to_device
from shardwise.spec.job.keys import Job
from shardwise.spec.job.preference import PreferenceSpec
from shardwise.train.preference.row_loss import DIVERGENCE, NUM_FIGURES, PreferenceLoss, named

Logs = npt.NDArray[np.float32]
#: Makes log-probabilities of micro-batches, without gradients; adapters off if asked.
Outputs = Callable[..., list[torch.Tensor | None]]


@dataclass(kw_only=True, eq=False)
class Part:
    """Rows to train or evaluate on. `known`: log-probabilities [samples, sides] under the
    reference; `known_mismatched`: sums of mismatched answers, by the bytes of a batch's samples;
    `text_weight`, `divergence`: of all of them, where they are one batch."""

    batcher: Batcher
    known: Logs | None = None
    known_mismatched: dict[bytes, float] | None = None
    text_weight: float | None = None
    divergence: torch.Tensor | None = None

    @property
    def data(self) -> PreparedData:
        """Its samples."""
        return self.batcher.data


class Preferences:
    """Losses of micro-batches, and what they add up. `spec`: the job's `preference`."""

    def __init__(self, job: Job, *, world: World, train: Batcher, evaluation: Batcher | None) -> None:
        self.job, self.spec, self.world = job, job.preference or PreferenceSpec(), world
        self.train, self.evaluation = Part(batcher=train), None if evaluation is None else Part(batcher=evaluation)
        self.figures = self._none()
        self._divergent: torch.Tensor | None = None

    def _none(self) -> torch.Tensor:
        return torch.zeros(NUM_FIGURES, dtype=torch.float64, device=self.world.device)

    def begin_evaluation(self, outputs: Outputs) -> None:
        """The evaluation is one batch, whatever its forwards are."""
        self.figures, part = self._none(), self._part(evaluates=True)
        every = np.arange(len(part.data))
        part.text_weight = self._text_weight(part, every)
        part.divergence = self._divergence(part, every, outputs) if self.job.objective == "kto" else None

    def _part(self, *, evaluates: bool) -> Part:
        return self.evaluation if evaluates and self.evaluation is not None else self.train

    def row_losses(self, batch: GlobalBatch, outputs: Outputs, *, evaluates: bool = False) -> list[PreferenceLoss]:
        """One for each micro-batch of this rank."""
        part = self._part(evaluates=evaluates)
        if not evaluates:
            self.figures = self._none()
        ids, divergence = np.array(batch.sample_ids, np.int64), part.divergence
        if self.job.objective == "kto" and divergence is None:
            divergence = self._divergence(part, ids, outputs)
        weight = self._text_weight(part, ids) if part.text_weight is None else part.text_weight
        references = self._references(part, batch.micro_batches, outputs)
        return [
            self._row_loss(part, micro, reference, divergence=divergence, text_weight=weight)
            for micro, reference in zip(batch.micro_batches, references, strict=True)
        ]

    def recorded(self) -> dict[str, float]:
        """All ranks' figures, by TRL's names, since the last `row_losses` or `begin_evaluation`."""
        # Each rank's own figures stay, for the forwards that are still to come.
        figures = self.world.counted(self.figures).clone()
        dist.all_reduce(figures)
        if self._divergent is not None:
            figures[DIVERGENCE] = self._divergent
        return named(figures.tolist(), pairs=self.job.sides == 2)

    def targets(self, micro: MicroBatch, row_loss: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels and the sum that each position is added to, int64 [rows, length]."""
        labels, rows = micro.labels, micro.owners
        if row_loss.num_sums > micro.num_rows:
            following = torch.full_like(labels, IGNORED)
            # Prompts have no labels: theirs are the tokens that follow in the same row.
            goes_on = micro.real[:, 1:] & (rows[:, 1:] == rows[:, :-1])
            following[:, :-1] = torch.where(goes_on, micro.input_ids[:, 1:], IGNORED)
            is_prompt = (labels == IGNORED) & (following != IGNORED) & (rows % 2 == 0)  # of chosen rows
            rows = torch.where(is_prompt, rows + micro.num_rows, rows)
            labels = torch.where(is_prompt, following, labels)
        return labels, rows

    def _row_loss(self, part: Part, micro: MicroBatch, reference: torch.Tensor, **of_batch: Any) -> PreferenceLoss:
        device = self.world.device
        there = torch.tensor([sample != FILLER for sample in micro.sample_ids])
        good = None
        if self.job.objective == "kto":
            ids = np.array([max(sample, 0) for sample in micro.sample_ids], np.int64)
            good = to_device(torch.from_numpy(part.data.is_good(ids)), device)
        tokens = micro.owners[micro.labels != IGNORED].bincount(minlength=micro.num_rows).clamp(min=1).float()
        return PreferenceLoss(
            spec=self.spec,
            objective=self.job.objective,
            tokens=to_device(tokens, device),
            counts=to_device(there.float(), device),
            reference=reference,
            figures=self.figures,
            good=good,
            group=self.world.row_group,
            **of_batch,
        )

    def _references(self, part: Part, micros: Sequence[MicroBatch], outputs: Outputs) -> list[torch.Tensor]:
        """Log-probabilities under the reference, float32 [rows]; 0 without one."""
        device = self.world.device
        if part.known is not None:
            return [to_device(_taken(part.known, micro), device) for micro in micros]
        if self.job.compares_with_itself:
            found = outputs(micros, adapters_off=True)
            if any(one is not None for one in found):
                return [one for one in found if one is not None]
        return [torch.zeros(micro.num_rows, device=device) for micro in micros]

    def _text_weight(self, part: Part, ids: npt.NDArray[np.int64]) -> float:
        prompts = self.job.objective == "orpo"  # of chosen rows are trained as text, too
        if self.job.sides == 1 or not (prompts or "sft" in self.spec.loss_type):
            return 0.0
        return len(ids) / max(1, part.data.chosen_tokens(ids, prompts=prompts))

    def _divergence(self, part: Part, ids: npt.NDArray[np.int64], outputs: Outputs) -> torch.Tensor:
        """The mean log-ratio of answers behind the prompts of others, at least 0."""
        if self.spec.loss_type != ["kto"]:
            return torch.zeros((), device=self.world.device)
        policy = self.mismatched(part, ids, outputs)
        if part.known_mismatched is None:
            reference: Any = self.mismatched(part, ids, outputs, adapters_off=True)
        else:
            reference = part.known_mismatched[ids.tobytes()]
        self._divergent = found = ((policy - reference) / len(ids)).clamp(min=0)
        return found.float()

    def mismatched(
        self, part: Part, ids: npt.NDArray[np.int64], outputs: Outputs, *, adapters_off: bool = False
    ) -> torch.Tensor:
        """The summed log-probability, a float64 scalar on every rank, of the answers of a batch
        behind the prompts of others: each row has that of the row before, the first the last's."""
        batcher = replace(part.batcher, data=part.data.mismatched(ids))
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for batch in batcher.forwards(np.arange(len(ids))):
            micros = batch.micro_batches
            for micro, logs in zip(micros, outputs(micros, adapters_off=adapters_off), strict=True):
                if logs is not None and self.world.is_first_of_row:
                    there = torch.tensor([sample != FILLER for sample in micro.sample_ids], device=logs.device)
                    total += torch.where(there, logs, 0).double().sum()
        dist.all_reduce(total)
        return total


def _taken(known: Logs, micro: MicroBatch) -> torch.Tensor:
    """Of the rows of a micro-batch, 0 for what fills it up."""
    ids = np.array(micro.sample_ids)
    found = np.where((ids == FILLER)[:, None], np.float32(0), known[np.maximum(ids, 0)])
    return torch.from_numpy(found.reshape(-1))


@contextmanager
def as_reference(modules: Sequence[nn.Module], *, adapters_off: bool = False) -> Generator[None]:
    """Inside, modules drop nothing out, and with `adapters_off` are the model that adapters were
    added to. PEFT's own switch would freeze adapters, and leave them so."""
    layers = [one for root in modules for one in root.modules() if adapters_off and hasattr(one, "_disable_adapters")]
    training = [root for root in modules if root.training]
    try:
        for root in training:
            root.train(False)
        for layer in layers:
            vars(layer)["_disable_adapters"] = True
        yield
    finally:
        for layer in layers:
            vars(layer)["_disable_adapters"] = False
        for root in training:
            root.train(True)
