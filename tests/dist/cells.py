"""A job trained under an execution in real processes, what came out, and what is compared."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.data.prepare.prepare import prepare
from shardwise.parallel.mesh import join_world
from shardwise.plan.memory.forecast import holdings_of
from shardwise.plan.work.inventory import take_inventory
from shardwise.plan.work.persistent import Holding
from shardwise.plan.work.work import Work, work_of
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.run import RunDirectory, read_metrics, write_json
from shardwise.train.build import Build, build
from shardwise.train.guards.checks import check_layout, check_trained
from shardwise.train.loop import train
from shardwise.train.saving.export import gathered
from shardwise.train.saving.final import save_final
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag
from tests.dist.worlds import run_world


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What one rank saw of a run: records of metrics.jsonl, whole tensors by Hugging Face name,
    sha256 of each frozen parameter by its name, sample ids of its forwards, without fillers."""

    metrics: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    frozen: dict[str, str]
    seen: list[int] = field(default_factory=list)

    def series(self, key: str) -> list[Any]:
        """One figure over the steps."""
        return [record[key] for record in self.metrics]


def job_on(model: Path | str, *, method: str, data: dict[str, Any], train: dict[str, Any], **other: Any) -> Job:
    """A job of global batches of 8 rows in float32, with small adapters for LoRA."""
    usual = {"lora": {"r": 4, "lora_alpha": 8}} if method == "lora" else {}
    train = {"global_batch_size": 8, "precision": "fp32", **train}
    return job_from_data({"model": str(model), "method": method, "data": data, "train": train, **usual, **other})


def prepare_cell(job: Job, root: Path) -> RunDirectory:
    """A run directory with its data prepared, as workers find it."""
    run = RunDirectory(root)
    root.mkdir(parents=True, exist_ok=True)
    write_json(run.resolved, job.to_json())
    prepare(run)
    return run


def execution(layout: Layout | None = None, **options: Any) -> Execution:
    """A float32 execution; only what the test is about is stated."""
    settings: dict[str, Any] = {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "precision": "fp32"}
    return Execution(layout=layout or Layout(), **(settings | options))


def spread(layout: Layout | None = None, *, micros: int = 1, **options: Any) -> Execution:
    """A global batch of 8 rows over a layout, in micro-batches for each rank; in float32."""
    ranks = layout.data_world_size if layout else 1
    size = -(-8 // (ranks * micros))
    return execution(layout, micro_batch_size=size, gradient_accumulation_steps=micros, **options)


#: Arguments of `Layout` for ZeRO-1 and ZeRO-2.
ZERO1: dict[str, Any] = {"zero_stage": 1, "reshard_after_forward": False}
ZERO2: dict[str, Any] = {"zero_stage": 2, "reshard_after_forward": False}

#: One of each kind of layout, on two or four processes.
LAYOUTS: dict[str, Layout] = {
    "single": Layout(),
    "ddp": Layout(dp_replicate=2),
    "zero1": Layout(dp_shard=2, **ZERO1),
    "zero2": Layout(dp_shard=2, **ZERO2),
    "fsdp": Layout(dp_shard=2),
    "tp": Layout(tp=2),
    "cp": Layout(cp=2),
    "mp": Layout(pp=2, schedule="sequential"),
    "pp": Layout(pp=2),
    "gpipe": Layout(pp=2, schedule="gpipe"),
    "interleaved": Layout(pp=2, schedule="interleaved"),
    "zero_bubble": Layout(pp=2, schedule="zero_bubble"),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
    "fsdp x tp": Layout(dp_shard=2, tp=2),
    "fsdp x pp": Layout(dp_shard=2, pp=2),
    "zero1 x tp": Layout(dp_shard=2, tp=2, **ZERO1),
}

#: Method and model: every layout trains a tied model in full, and adapters of an untied one.
PAIRS = [("full", "tied"), ("lora", "untied"), ("qlora", "wide")]


def planned(job: Job, chosen: Execution, *, hardware: str | None = None, model: ModelShape | None = None) -> Work:
    """What the planner forecasts from; by default on as many processors as the layout has ranks."""
    shape, cluster = model or read_model(job.model), parse_hardware(hardware or f"cpu:{chosen.layout.world_size}")
    return work_of(job, model=shape, cluster=cluster, execution=chosen, inventory=take_inventory(job, shape))


def forecast_holdings(job: Job, chosen: Execution, **of: Any) -> list[Holding]:
    """What the planner says that each rank holds between steps; `of`: of `planned`."""
    found = {rank: one for one in holdings_of(planned(job, chosen, **of)) for rank in one.ranks(chosen.layout)}
    return [found[rank] for rank in range(len(found))]


def composed(run: RunDirectory, chosen: Execution) -> Build:
    """Builds this rank's part of a run, in a world that `run_world` made."""
    job = job_from_data(json.loads(run.resolved.read_text()))
    world = join_world(chosen.layout)
    return build(run, job, chosen, world=world, journal=Journal(run=run, rank=world.rank))


def run_built(work: Callable[..., Any], run: RunDirectory, chosen: Execution, *arguments: Any) -> list[Any]:
    """Runs `work(built, *arguments)` on ranks, each with its part of a run; what each returned."""
    return run_world(chosen.layout.world_size, lambda: work(composed(run, chosen), *arguments))


def journal_of(built: Build) -> Journal:
    """This rank's."""
    return Journal(run=built.checkpoints.run, rank=built.world.rank)


def train_on(built: Build, *, start: int = 0) -> None:
    """Trains this rank's part of a run to the end."""
    train(built, start=start, journal=journal_of(built), stop=StopFlag())


def train_rank(built: Build) -> Trained:
    """Trains to the end on this rank."""
    model, inventory = built.model, take_inventory(built.job, built.model.shape)
    check_layout(built.world, model.parameters, ownership=model.ownership, elements=model.elements)
    check_trained(built.world, model.parameters, ownership=model.ownership, planned=inventory.trained_elements)
    micros = [micro for batch in built.batches.from_(0) for micro in batch.micro_batches]
    seen = [sample for micro in micros for sample in micro.sample_ids if sample >= 0]
    train_on(built)
    return outcome(built, seen=seen)


def train_and_save(built: Build) -> None:
    """Trains to the end and writes `final/`."""
    train_on(built)
    save(built)


def save(built: Build, *, trained: bool = True) -> None:
    """Writes `final/`."""
    save_final(built.model, run=built.checkpoints.run, journal=journal_of(built), trained=trained)


def interrupt(run: RunDirectory, chosen: Execution, *, after: int, signal: int = 15) -> None:
    """Trains until a stop is asked for during a step; `signal`: 0 where it was the last one."""
    assert {*run_built(_until, run, chosen, after)} == {(after, signal)}


def _until(built: Build, stop_after: int) -> tuple[int, int]:
    stop = StopFlag()

    class Asking(Journal):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if (name, value) == ("step", stop_after):
                stop.number = 15

    ended = train(built, start=0, journal=Asking(run=built.checkpoints.run, rank=built.world.rank), stop=stop)
    return ended.steps, ended.signal


def resume(run: RunDirectory, chosen: Execution, *, at: int) -> list[Trained]:
    """Goes on from the last checkpoint, which is of a step, to the end; the result of each rank."""
    return run_built(_resume, run, chosen, at)


def _resume(built: Build, at: int) -> Trained:
    assert built.checkpoints.restore() == at
    built.schedule.last_epoch = at - 1
    built.schedule.step()
    train_on(built, start=at)
    return outcome(built)


def move(job: Job, root: Path, before: Execution, after: Execution, *, at: int) -> list[Trained]:
    """Stops a run during a step, and goes on under another execution."""
    run = prepare_cell(job, root)
    interrupt(run, before, after=at)
    return resume(run, after, at=at)


def outcome(built: Build, *, seen: list[int] | None = None) -> Trained:
    """Reads a trained build back."""
    weights = {name: gathered(p).clone() for name, p in built.model.parameters if p.requires_grad}
    frozen = {name: digest(gathered(p).clone()) for name, p in built.model.parameters if not p.requires_grad}
    return Trained(metrics=read_metrics(built.checkpoints.run), weights=weights, frozen=frozen, seen=seen or [])


def digest(tensor: torch.Tensor) -> str:
    """sha256 over the bytes of a tensor on the CPU."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def train_cell(job: Job, root: Path, chosen: Execution) -> list[Trained]:
    """Prepares and trains a cell; the result of each rank."""
    return run_built(train_rank, prepare_cell(job, root), chosen)


def save_cell(job: Job, root: Path, chosen: Execution) -> RunDirectory:
    """Prepares and trains a cell, and writes `final/`."""
    run = prepare_cell(job, root)
    run_built(train_and_save, run, chosen)
    return run


#: What a job says of each optimizer.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "learning_rate": 5e-4},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.05},
    "sgd with momentum": {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9},
}
