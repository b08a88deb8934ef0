"""Trains and compares one layout with one process. Where AdamW may amplify rounding, trains both again with other
optimizers."""

from __future__ import annotations

from pathlib import Path

from shardwise.api.checks.rounding import Look, damped_look, farthest_apart, plain_look
from shardwise.api.checks.trials import Trials
from shardwise.errors import DoesNotFitError, InputError, StoppedError, WorkerFailedError
from shardwise.launch.processes.torch_helpers import weights_difference
from shardwise.launch.trials import REFERENCE, Trial, Unable, clear
from shardwise.report.parity import Agreement, agreement, failed, looked_at_damped, looked_at_plainly, may_be_rounding
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory, read_metrics

NOTHING_PROVEN = "nothing is proven, and the same command starts anew"


class Proof:
    """Compares the layouts of one job with one process. `trials`: the reference, and the layouts; `tolerance`: of
    losses, gradient norms and weights, relative to those of one process."""

    def __init__(self, trials: Trials, *, tolerance: float) -> None:
        self._trials = trials
        self._tolerance = tolerance
        self._train = trials.asked.train
        self._first = Look(train=self._train)
        self._references: dict[str, RunDirectory] = {}

    @property
    def reference(self) -> RunDirectory:
        """The run of one process."""
        return self._run_of(REFERENCE, self._first)

    def train_reference(self) -> None:
        """Trains the job on one process."""
        self._train_as(REFERENCE, self._first)

    def of(self, trial: Trial) -> Agreement | Unable:
        """Trains a layout and compares it with the reference, which has been trained."""
        try:
            found = self._beside(self.reference, self._train_as(trial, self._first), trial, self._first)
        except (DoesNotFitError, InputError) as error:  # one process has trained the job, so it is this layout's alone
            return Unable(layout=trial.label, reason=str(error))
        except WorkerFailedError as error:
            return self._failed(trial, error, self._first)
        is_adam = self._train.optimizer != "sgd"
        return self._looked_at_again(trial, found) if is_adam and may_be_rounding(found) else found

    def _looked_at_again(self, trial: Trial, found: Agreement) -> Agreement:
        """Compares with SGD, and if that agrees with a damped AdamW: SGD has no state that could be wrong."""
        records = read_metrics(self.reference)
        plain = self._again(trial, plain_look(self._train))
        seen = looked_at_plainly(found, plain, most=farthest_apart(self._train, records))
        if plain.first is not None:
            return seen
        num_trained = read_plan(self.reference.plan).model["num_trainable_parameters"]
        look = damped_look(self._train, records, num_trained=num_trained, tolerance=self._tolerance)
        return looked_at_damped(found, seen, self._again(trial, look))

    def _again(self, trial: Trial, look: Look) -> Agreement:
        """Trains a layout, and once for each look one process, and compares them."""
        try:
            reference = self._reference_of(look)
            return self._beside(reference, self._train_as(trial, look), trial, look)
        except (DoesNotFitError, InputError, WorkerFailedError) as error:
            return self._failed(trial, error, look)

    def _reference_of(self, look: Look) -> RunDirectory:
        """One process, trained once for each look; WorkerFailedError if it fails."""
        if look.name not in self._references:
            try:
                self._references[look.name] = self._train_as(REFERENCE, look)
            except (DoesNotFitError, InputError, WorkerFailedError) as error:
                raise WorkerFailedError(f"one process itself failed: {error}") from error
        return self._references[look.name]

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

    def _failed(self, trial: Trial, error: Exception, look: Look) -> Agreement:
        run = self._run_of(trial, look)
        return failed(trial.label, processes=trial.layout.world_size, run=str(run.root), reason=str(error))
