"""Trains and compares one layout with one process. Where AdamW may amplify rounding, trains both
again with SGD and with a larger epsilon, which tell rounding from real differences."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.api.checks.comparing import Trials
from shardwise.errors import DoesNotFitError, InputError, StoppedError, WorkerFailedError
from shardwise.launch.processes.helpers import weights_difference
from shardwise.launch.trials import REFERENCE, Trial, Unable, clear
from shardwise.report.parity import Agreement, agreement, failed, looked_at_damped, looked_at_plainly, may_be_rounding
from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.plan.file import read_plan
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory, read_metrics

#: SGD moves weights by no more than rounding of the gradient; 20 steps of a clipped one move all
#: weights by up to 1.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
}

#: Relative to the norm of all gradients, what another order of summation may change: four units of
#: float32's rounding.
ROUNDING = 2.0**-22

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Look:
    """A training of the job. `name`: empty for the job as it is; `folder`: of its runs; `changed`:
    keys of `train` that are not the job's; `num_trained`: elements, where AdamW is damped."""

    train: TrainSpec
    name: str = ""
    folder: str = ""
    changed: tuple[str, ...] = ()
    num_trained: int = 0

    @property
    def overrides(self) -> tuple[Override, ...]:
        """What makes the job this one."""
        values = self.train.model_dump(mode="json", include=set(self.changed))
        return tuple(
            Override(text=f"train.{key}={json.dumps(values[key])}", where=f"verify sets train.{key}")
            for key in self.changed
        )

    def floor(self, records: Records, *, tolerance: float) -> float:
        """The largest norm by which rounding may move a tensor apart: `tolerance` times how far
        weights can move; 0 for the job's own AdamW, whose steps do not shrink with gradients."""
        if self.train.optimizer == "sgd":
            # How far SGD has moved all weights together, at most, in Euclidean norm.
            travelled = sum(float(record["learning_rate"]) * _norm(record, self.train) for record in records)
            return tolerance * travelled / (1 - self.train.momentum)
        return tolerance * _rates(records) * math.sqrt(self.num_trained)


def damped_look(train: TrainSpec, records: Records, *, num_trained: int, tolerance: float) -> Look:
    """With an AdamW whose epsilon is large beside rounding, which shows errors in moments, rates
    and decay: of `ROUNDING / tolerance` of the root mean square of all gradients. Rounding then
    moves no tensor farther than the floor, and a usual gradient makes nearly a usual step."""
    share = min(1.0, ROUNDING / tolerance) if tolerance else 1.0
    largest = max((_norm(record, train) for record in records), default=0.0)
    epsilon = max(train.adam_epsilon, share * largest / math.sqrt(num_trained))
    damped = train.model_copy(update={"adam_epsilon": epsilon})
    # An optimizer without such an epsilon is held to the same floor in its second training.
    changed = tuple({"adam_epsilon"} & set(train.optimizer_rule.keys))
    return Look(train=damped, name="adamw damped", folder="damped", changed=changed, num_trained=num_trained)


def farthest_apart(train: TrainSpec, records: Records) -> float:
    """How far AdamW can move one weight apart from another in these steps."""
    # As a multiple of the learning rate (Kingma and Ba 2015, section 2.1).
    largest_step = max(1.0, (1 - train.adam_beta1) / math.sqrt(1 - train.adam_beta2))
    return 2 * largest_step * _rates(records)


def _rates(records: Records) -> float:
    return sum(float(record["learning_rate"]) for record in records)


def _norm(record: dict[str, Any], train: TrainSpec) -> float:
    """Of a step's clipped gradients; 0 where it was skipped."""
    return min(train.max_grad_norm or math.inf, float(record["grad_norm"] or 0.0))


NOTHING_PROVEN = "nothing is proven, and the same command starts anew"


class Proof:
    """Compares the layouts of one job with one process. `trials`: the reference, and the layouts;
    `tolerance`: of losses, gradient norms and weights, relative to those of one process."""

    def __init__(self, trials: Trials, *, tolerance: float) -> None:
        self._trials = trials
        self._tolerance = tolerance
        self._train = trials.asked.train
        self._first = Look(train=self._train)
        #: The run of one process, and its runs of further looks.
        self.reference = self._run_of(REFERENCE, self._first)
        self._references: dict[str, RunDirectory] = {}

    def of(self, trial: Trial) -> Agreement | Unable | None:
        """Trains a layout and compares it with the reference, which comes first, to be trained."""
        if trial == REFERENCE:
            self._train_as(REFERENCE, self._first)
            return None
        try:
            found = self._beside(self.reference, self._train_as(trial, self._first), trial, self._first)
        except (DoesNotFitError, InputError) as error:  # one process has trained the job, so it is this layout's alone
            return Unable(layout=trial.label, reason=str(error))
        except WorkerFailedError as error:
            return self._failed(trial, str(error), self._first)
        is_adam = self._train.optimizer != "sgd"
        return self._looked_at_again(trial, found) if is_adam and may_be_rounding(found) else found

    def _looked_at_again(self, trial: Trial, found: Agreement) -> Agreement:
        """Compares with SGD, then with a damped AdamW: SGD has no state that could be wrong."""
        records = read_metrics(self.reference)
        with_sgd = self._train.model_copy(update=PLAIN)
        plain = self._again(trial, Look(train=with_sgd, name="sgd", folder="sgd", changed=tuple(PLAIN)))
        seen = looked_at_plainly(found, plain, most=farthest_apart(self._train, records))
        if plain.first is not None:
            return seen
        num_trained = read_plan(self.reference.plan).model["num_trainable_parameters"]
        look = damped_look(self._train, records, num_trained=num_trained, tolerance=self._tolerance)
        return looked_at_damped(found, seen, self._again(trial, look))

    def _again(self, trial: Trial, look: Look) -> Agreement:
        """Trains a layout, and once for each look one process, and compares them."""
        whose = "one process itself failed: "
        try:
            if look.name not in self._references:
                self._references[look.name] = self._train_as(REFERENCE, look)
            whose = ""
            return self._beside(self._references[look.name], self._train_as(trial, look), trial, look)
        except (DoesNotFitError, InputError, WorkerFailedError) as error:
            return self._failed(trial, f"{whose}{error}", look)

    def _train_as(self, trial: Trial, look: Look) -> RunDirectory:
        run = self._run_of(trial, look)
        with self._trials.request.blaming("output_dir"):
            clear(run)
        try:
            self._trials.train(trial, run=run, also=look.overrides, again=look.name)
        except StoppedError as error:
            message = f"stopped while training {trial.label}; {NOTHING_PROVEN}"
            raise StoppedError(message, exit_code=error.exit_code) from None
        return run

    def _run_of(self, trial: Trial, look: Look) -> RunDirectory:
        return RunDirectory(Path(self._trials.asked.output_dir) / "verify" / look.folder / trial.label)

    def _beside(self, reference: RunDirectory, run: RunDirectory, trial: Trial, look: Look) -> Agreement:
        records = read_metrics(reference)
        floor = look.floor(records, tolerance=self._tolerance)
        return agreement(
            trial.label,
            processes=trial.layout.world_size,
            run=str(run.root),
            reference=records,
            found=read_metrics(run),
            weights=weights_difference(reference.final, run.final, tolerance=self._tolerance, floor=floor),
            tolerance=self._tolerance,
        )

    def _failed(self, trial: Trial, reason: str, look: Look) -> Agreement:
        run = self._run_of(trial, look)
        return failed(trial.label, processes=trial.layout.world_size, run=str(run.root), reason=reason)
