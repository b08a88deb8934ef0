"""The training loop. It does not know how the model is parallelized."""

from dataclasses import dataclass

from shardwise.data.digests import look
from shardwise.data.micro_batches import GlobalBatch
from shardwise.spec.run import EVALUATION, SAVING
from shardwise.train.build import Build
from shardwise.train.guards.checks import REPLICA_CHECK_STEPS, GuardError, check_finite, check_replicas, check_sights
from shardwise.train.optim import Update, gradient_norm
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag


@dataclass(frozen=True, kw_only=True)
class LoopOutcome:
    """How a run ended. `steps`: optimizer steps done in all; `signal`: the signal it stopped on, or
    0 if it finished; `saved`: whether the last step is in a checkpoint."""

    steps: int
    signal: int = 0
    saved: bool = False


def train(build: Build, *, start: int, journal: Journal, stop: StopFlag) -> LoopOutcome:
    """Trains from step `start` to the end, or to a signal. Raises GuardError: a loss or gradient is
    not finite, replicas differ, or ranks see other samples than they should."""
    train_spec = build.job.train
    total = build.batches.total_steps
    upcoming = build.batches.from_(start)
    batch = next(upcoming, None)
    while batch is not None:
        journal.stepping()
        rate = float(build.optimizer.param_groups[0]["lr"])
        with build.metrics.working(batch):
            update = launch(build, batch)
        sight, following = look(batch, build.data), next(upcoming, None)  # while the device works
        skipped, scale = not _check(build, batch, update), build.step.scale
        loss_scale = None if scale.is_fixed else scale.value  # of this step
        _follow(build, batch, skipped=skipped)
        build.metrics.stepped()
        journal.stepped(batch.step)
        last = batch.step == total
        # After the step, in an existing exchange: a step on wrong rows is not recorded or saved.
        pulse = build.metrics.pulse(stop=stop.number, is_written=build.checkpoints.is_written, sight=sight)
        if pulse.is_written:
            build.checkpoints.commit()
        check_sights(build.world, batch, build.data, pulse.sights)
        due = last or _due(batch.step, train_spec.eval_steps)
        figures = build.step.figures()
        # An evaluation takes minutes, which a run that is asked to stop may not have.
        eval_loss, asked = evaluate(build, journal, stop) if due and not pulse.stop else (None, pulse.stop)
        if eval_loss is not None:
            figures |= build.step.figures(prefix="eval_")
        if due and asked and build.evaluation is not None:
            journal.warn(f"the evaluation after step {batch.step} was left out: the run was asked to stop")
        loss, norm = update.figures
        kept = None if skipped else norm
        shown = {"eval_loss": eval_loss, "loss_scale": loss_scale, "figures": figures}
        build.metrics.record(batch, loss=loss, norm=kept, learning_rate=rate, pulse=pulse, **shown)
        ends = last or bool(asked)
        saving = _saves(build, batch.step, last=last, asked=bool(asked))
        if saving or ends or _due(batch.step, REPLICA_CHECK_STEPS):
            # Frozen weights do not change: they are compared before something is kept of them.
            compared = build.model.parameters if saving or ends else build.model.trained
            check_replicas(build.world, compared, when=f"after step {batch.step}")
        if saving:
            with build.metrics.meter.during(SAVING):
                saving = build.checkpoints.begin(batch.step)
        if ends:
            saved = build.checkpoints.commit() and saving
            return LoopOutcome(steps=batch.step, signal=0 if last else asked, saved=saved)
        build.metrics.edge()
        batch = following
    return LoopOutcome(steps=total, saved=True)


def launch(build: Build, batch: GlobalBatch) -> Update:
    """Gradients and their update, on their way."""
    loss = build.step(batch)
    norm = gradient_norm(build.model.counted, device=build.world.device)
    update = Update(loss=loss, norm=norm, max_norm=build.job.train.max_grad_norm, scale=build.step.enlarged)
    update.launch(build.optimizer, build.model.trainable, check=lambda: _check(build, batch, update))
    build.schedule.step()
    return update


def _check(build: Build, batch: GlobalBatch, update: Update) -> bool:
    """Whether a step is taken. Raises GuardError if loss or norm is not finite, and not for the
    scale of the loss; weights and states are then as they were."""
    loss, norm = update.figures
    if build.step.scale.skips(loss=loss, norm=norm):
        return False
    check_finite(
        build.world,
        step=batch.step,
        loss=loss,
        norm=norm,
        bad_sample=lambda: build.step.first_bad_sample(batch),
        where=build.data.where,
    )
    return True


def _follow(build: Build, batch: GlobalBatch, *, skipped: bool) -> None:
    """Renews the scale of the loss. Raises GuardError: none keeps gradients finite."""
    scale = build.step.scale
    scale.follow(skipped=skipped)
    if scale.value < 1.0:
        raise GuardError(
            f"step {batch.step}: gradients overflow float16 at every scale of the loss down to 1, and all steps since "
            "were skipped; use train.precision: mixed or fp32, or look at the model"
        )


def _saves(build: Build, step: int, *, last: bool, asked: bool) -> bool:
    """Whether a step's checkpoint is saved; the last if small (adapters) or any are wanted."""
    every = build.job.train.save_steps
    if build.is_trial:
        return False
    if last:
        return every > 0 or build.model.result.adapters is not None
    return asked or _due(step, every)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def evaluate(build: Build, journal: Journal, stop: StopFlag) -> tuple[float | None, int]:
    """Loss per trained token, pair or row over the evaluation data, the same for any number of
    ranks, or None; and a signal. A stop request between batches ends it without a loss."""
    if build.evaluation is None:
        return None, 0
    build.model.set_training(False)
    summed, units, asked = 0.0, 0, 0
    with build.metrics.meter.during(EVALUATION):
        build.step.begin_evaluation()
        for batch in build.evaluation:
            summed += build.step.evaluate(batch)
            units += build.step.units(batch)
            journal.progress.touch()
            asked = stop.agreed(build.world.control)
            if asked:
                break
    build.model.set_training(True)
    return (None if asked else summed / units), asked
