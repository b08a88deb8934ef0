"""Composes job, execution, model, data, optimizer, checkpoints and metrics."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from shardwise.data.micro_batches import Batcher, Batches, EvalBatches
from shardwise.data.store import PreparedData, open_prepared
from shardwise.errors import ModelError, RunDirectoryError, UnsupportedError
from shardwise.models.known_ahead import hold_rotations, state_packed
from shardwise.models.load import Materialise, materialise
from shardwise.parallel.context import Context
from shardwise.parallel.mesh import World
from shardwise.parallel.optimizer.offload import HostCopies
from shardwise.parallel.optimizer.stepped import Detour, LocalParts, Stepped
from shardwise.parallel.optimizer.zero1 import Windows
from shardwise.parallel.single_stage import WholeModel
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import read_places
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.run import TRIAL_ROWS, RunDirectory, read_json, revision_of
from shardwise.spec.support.attention import joins_rows
from shardwise.spec.support.splits import MASKED_WITHOUT_POSITIONS
from shardwise.train.guards.checks import read_back_states
from shardwise.train.guards.read_back import LiveTypes, read_back_places
from shardwise.train.measuring.memory import MemoryMeter
from shardwise.train.measuring.metrics import Metrics, Trackers
from shardwise.train.model import TrainedModel, build_model
from shardwise.train.optim import build_optimizer, build_schedule
from shardwise.train.precision import LossScale
from shardwise.train.preference.known_reference import KnownReference
from shardwise.train.preference.preferences import Preferences
from shardwise.train.saving.checkpoint import Checkpoints, identity_of
from shardwise.train.saving.export import learned_ends
from shardwise.train.step import GradientAccumulator
from shardwise.train.watching.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything the loop uses. `is_trial`: whether steps fit is tried, and nothing saved."""

    job: Job
    execution: Execution
    world: World
    model: TrainedModel
    step: GradientAccumulator
    batches: Batches
    evaluation: EvalBatches | None
    data: PreparedData
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    checkpoints: Checkpoints
    metrics: Metrics
    types: LiveTypes
    is_trial: bool = False


def build(
    run: RunDirectory,
    job: Job,
    execution: Execution,
    *,
    world: World,
    journal: Journal,
    peak_flops: float | None = None,
    fill: Materialise = materialise,
) -> Build:
    """Composes a run. `peak_flops`: of one device, if known; `fill`: gives parameters values."""
    prepared, spec = read_json(run.data), job.train
    if prepared is None:  # what data preparation wrote
        raise RunDirectoryError(f"{run.data} is missing; start the run with `shardwise train`, which prepares the data")
    is_rehearsed = fill is not materialise
    torch.manual_seed(spec.seed + world.stream)
    if spec.full_determinism:
        torch.use_deterministic_algorithms(True)
    journal.enter("loading")
    data, trial_rows = open_prepared(prepared["train"]), prepared.get(TRIAL_ROWS)
    if trial_rows is not None:
        data = data.longest_alone(trial_rows)
    model = _model(run, job, execution, world=world, prepared=prepared, is_packed=data.packed, fill=fill)
    if not is_rehearsed:  # a rehearsal's rows are as long as may be, whatever a run's are
        _check_positions(data, model.shape)
    batcher = Batcher(
        data=data,
        micro_batch_size=execution.micro_batch_size,
        data_rank=world.data_rank,
        data_world_size=world.layout.data_world_size,
        padding_id=prepared["padding_id"],
        length_multiple=world.layout.sequence_multiple,
        joins=not world.layout.splits_rows and joins_rows(job, model.shape, execution.attn_implementation),
    )
    batches = Batches(
        batcher,
        global_batch_size=spec.global_batch_size,
        seed=spec.seed,
        shuffle=job.data.shuffle,
        num_epochs=spec.num_train_epochs,
        max_steps=spec.max_steps,
    )
    evaluated = prepared["eval"] and replace(batches.batcher, data=open_prepared(prepared["eval"]))
    stepped = _stepped(model, execution, world=world)
    optimizer = build_optimizer(stepped.named, train=spec, name=execution.optimizer, wholes=stepped.wholes())
    stepped.follow(optimizer)
    read_back_states(optimizer, world, stepped)
    read_back_places(optimizer, model.parameters, stepped, execution=execution, device=world.device)
    types = LiveTypes(optimizer, model.parameters, stepped, execution=execution)
    # Of gradients DDP's buckets alone stay between steps.
    buckets = [view for _, view in model.spread.begin.places] if isinstance(model.spread, WholeModel) else []
    weights = [p for _, p in model.parameters]
    meter = MemoryMeter(world.device, parameters=weights, optimizer=optimizer, buckets=buckets)
    scale = LossScale.of(execution.precision)
    mean_length = prepared["train"]["num_tokens"] / max(1, prepared["train"]["num_samples"] * job.sides)
    metrics = Metrics(
        world=world,
        journal=journal,
        meter=meter,
        trackers=Trackers(spec.report_to if world.is_first else (), job, run, complain=journal.warn),
        flops_per_token=model_flops_per_token(model.shape, length=mean_length, lora=job.adapters),
        peak_flops=peak_flops,
        total_steps=batches.total_steps,
        logging_steps=spec.logging_steps,
    )
    checkpoints = Checkpoints(
        run=run,
        world=world,
        journal=journal,
        parameters=model.parameters,
        stepped=stepped,
        optimizer=optimizer,
        scale=scale,
        ownership=model.ownership,
        identity=identity_of(job, model=model.content, data=prepared["fingerprint"]),
        seed=spec.seed,
        keep=spec.save_total_limit,
    )
    preferences = None
    if job.objective != "sft":
        preferences = Preferences(job, world=world, train=batches.batcher, evaluation=evaluated)
    step = GradientAccumulator(
        spread=model.spread,
        world=world,
        keeps_casts=execution.keeps_casts,
        scale=scale,
        balance=model.balance,
        leaves_padding=model.leaves_padding,
        preferences=preferences,
    )
    if preferences is not None and not is_rehearsed:  # a rehearsal has no numbers
        KnownReference(
            preferences=preferences,
            execution=execution,
            batches=batches,
            fingerprint=prepared["fingerprint"],
            journal=journal,
            keep=trial_rows is None,
        ).fill(step, model=model)
    return Build(
        job=job,
        execution=execution,
        world=world,
        model=model,
        step=step,
        batches=batches,
        evaluation=None if evaluated is None else EvalBatches(evaluated),
        data=data,
        optimizer=optimizer,
        schedule=build_schedule(optimizer, train=spec, total_steps=batches.total_steps),
        checkpoints=checkpoints,
        metrics=metrics,
        types=types,
        is_trial=trial_rows is not None,
    )


def _model(
    run: RunDirectory,
    job: Job,
    execution: Execution,
    *,
    world: World,
    prepared: dict[str, Any],
    is_packed: bool,
    fill: Materialise,
) -> TrainedModel:
    """The loaded model, whose attention knows of context parallel and of packed rows."""
    context = Context.registered(world)
    try:
        revision = revision_of(run, job.model)
        said = {"chat_template": prepared.get("chat_template"), "ends": learned_ends(prepared)}
        model = build_model(job, execution, world=world, revision=revision, fill=fill, **said)
    except ModelError:
        with read_places(run).blaming("model"):  # the job's line of it
            raise
    state_packed(is_packed, told=context.hear if context is not None else None)
    hold_rotations(model.spread.modules)
    return model


def _check_positions(data: PreparedData, shape: ModelShape) -> None:
    """Raises UnsupportedError: a document is longer than the model's rotary positions."""
    most = shape.max_position_embeddings
    if shape.built is not None or shape.position_parameters or shape.family in MASKED_WITHOUT_POSITIONS:
        return
    longest = data.longest_document
    if longest > most:
        raise UnsupportedError(
            f"a row has {longest:,} tokens, and the model has {most:,} positions; add rope_scaling to the job "
            f"(rope_type yarn with a factor of {-(-longest // most)} or more, or what its publisher advises), or lower "
            f"data.max_length to {most}"
        )


def _stepped(model: TrainedModel, execution: Execution, *, world: World) -> Stepped:
    """What the optimizer steps: local parts, windows of these, copies of these on the host."""
    detours: list[Detour] = [LocalParts(model.trained)]
    if world.layout.shards_states_only:
        detours.append(Windows(detours[-1], world=world))
    if execution.optimizer_on_host and not execution.parameters_on_host:
        detours.append(HostCopies(detours[-1], world.device))
    return Stepped(detours=tuple(detours))
