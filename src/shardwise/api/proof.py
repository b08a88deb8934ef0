"""One layout beside one process: trained anew, compared, and looked at again with plain SGD where AdamW may make much
of rounding."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.api.trials import Trials
from shardwise.errors import DoesNotFitError, InputError, StoppedError, WorkerFailedError
from shardwise.launch.trials import REFERENCE, Trial, Unable, clear
from shardwise.launch.weights import weights_apart
from shardwise.report.parity import Agreement, agreement, failed, looked_at_plainly, may_be_rounding
from shardwise.spec.job import TrainSpec
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory, read_metrics

NOTHING_PROVEN = "nothing is proven, and the same command starts anew"

#: Steps that follow the gradient as it is: what rounding does to it, it does to the weights, and no more. Their size is
#: such that 20 of them of a clipped gradient can move all weights by as much as one, in Euclidean norm.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
}


class Proof:
    """The proof of one job.

    Args:
        trials: the reference, and the layouts to compare with it.
        tolerance: of losses, gradient norms and weights, relative to those of one process.
    """

    def __init__(self, trials: Trials, *, tolerance: float) -> None:
        self._trials = trials
        self._tolerance = tolerance
        self._plain_reference = cache(lambda: self.train(REFERENCE, plain=True))

    @property
    def reference(self) -> RunDirectory:
        """The run of one process."""
        return self._run_of(REFERENCE)

    def of(self, trial: Trial) -> Agreement | Unable:
        """Trains a layout and compares it with the reference, which has been trained."""
        try:
            found = self._beside(self.reference, self.train(trial), trial, train=self._trials.asked.train)
        except (DoesNotFitError, InputError) as error:  # one process has trained the job, so it is this layout's alone
            return Unable(layout=trial.label, reason=str(error))
        except WorkerFailedError as error:
            return self._failed(trial, error)
        is_adam = self._trials.asked.train.optimizer != "sgd"
        return self._looked_at_again(trial, found) if is_adam and may_be_rounding(found) else found

    def train(self, trial: Trial, *, plain: bool = False) -> RunDirectory:
        """Trains the job anew as one of the trials, or with plain SGD in place of its own optimizer.

        Raises:
            StoppedError: a signal stopped it.
        """
        run = self._run_of(trial, plain=plain)
        with self._trials.request.blaming("output_dir"):
            clear(run)
        try:
            self._trials.train(trial, run=run, also=_PLAINLY if plain else ())
        except StoppedError as error:
            message = f"stopped while training {trial.label}; {NOTHING_PROVEN}"
            raise StoppedError(message, exit_code=error.exit_code) from None
        return run

    def _run_of(self, trial: Trial, *, plain: bool = False) -> RunDirectory:
        folder = Path(self._trials.asked.output_dir) / "verify"
        return RunDirectory((folder / "sgd" if plain else folder) / trial.label)

    def _looked_at_again(self, trial: Trial, found: Agreement) -> Agreement:
        train = self._trials.asked.train
        plainly = train.model_copy(update=PLAIN)
        try:
            plain = self._beside(self._plain_reference(), self.train(trial, plain=True), trial, train=plainly)
        except (DoesNotFitError, InputError, WorkerFailedError) as error:
            plain = self._failed(trial, error, plain=True)
        most = 2 * _largest_step(train) * sum(float(record["learning_rate"]) for record in read_metrics(self.reference))
        return looked_at_plainly(found, plain, most=most)

    def _beside(self, reference: RunDirectory, run: RunDirectory, trial: Trial, *, train: TrainSpec) -> Agreement:
        records = read_metrics(reference)
        floor = self._tolerance * _travelled(records, train) if train.optimizer == "sgd" else 0.0
        return agreement(
            trial.label,
            processes=trial.layout.world_size,
            run=str(run.root),
            reference=records,
            found=read_metrics(run),
            weights=weights_apart(reference.final, run.final, tolerance=self._tolerance, floor=floor),
            tolerance=self._tolerance,
        )

    def _failed(self, trial: Trial, error: Exception, *, plain: bool = False) -> Agreement:
        size, run = trial.layout.world_size, self._run_of(trial, plain=plain)
        return failed(trial.label, processes=size, run=str(run.root), reason=str(error))


_PLAINLY = tuple(
    Override(text=f"train.{key}={json.dumps(value)}", where=f"verify sets train.{key}") for key, value in PLAIN.items()
)


def _largest_step(train: TrainSpec) -> float:
    """How far AdamW moves a weight in one step, at most, as a multiple of the learning rate (Kingma and Ba 2015,
    section 2.1)."""
    return max(1.0, (1 - train.adam_beta1) / math.sqrt(1 - train.adam_beta2))


def _travelled(records: Sequence[dict[str, Any]], train: TrainSpec) -> float:
    """How far SGD has carried all weights together, at most: where gradients agree within a tolerance of their norm,
    weights do within the same share of this."""
    most = train.max_grad_norm or math.inf
    steps = (float(record["learning_rate"]) * min(most, float(record["grad_norm"])) for record in records)
    return sum(steps) / (1 - train.momentum)
