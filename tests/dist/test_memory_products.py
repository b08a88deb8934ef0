"""Pipelines, tensor parallel and products: what each rank holds is the forecast, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.plan.inventory import take_inventory
from shardwise.plan.memory import holdings_of
from shardwise.plan.work import work_of
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.journal import Journal
from shardwise.train.loop import train
from shardwise.train.memory import Held, held
from shardwise.train.signals import StopFlag
from shardwise.train.worker import held_gradients
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world

LAYOUTS = [
    Layout(pp=2, schedule="sequential"),
    Layout(pp=2),
    Layout(pp=2, schedule="zero_bubble"),
    Layout(pp=2, dp_shard=2),
    Layout(pp=2, dp_replicate=2),
    Layout(tp=2),
    Layout(tp=2, dp_shard=2),
    Layout(tp=2, dp_shard=2, zero_stage=1, reshard_after_forward=False),
    Layout(pp=2, dp_shard=2, zero_stage=1, reshard_after_forward=False),
    Layout(tp=2, pp=2),
]


def _held(run: RunDirectory, layout: Layout, precision: str) -> tuple[Held, int]:
    built = composed(run, _chosen(layout, precision))
    train(built, start=0, journal=Journal(run=run, rank=built.world.rank), stop=StopFlag())
    return held((p for _, p in built.model.parameters), built.optimizer), held_gradients(built)


def _chosen(layout: Layout, precision: str) -> Execution:
    return execution(layout, precision=precision, micro_batch_size=2, gradient_accumulation_steps=2)


@pytest.mark.parametrize(("method", "precision"), [("full", "fp32"), ("lora", "mixed")])
@pytest.mark.parametrize("model", ["tied", "untied"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.strategy}-{layout.schedule}")
def test_ranks_of_products_hold_what_is_forecast(
    layout: Layout, model: str, method: str, precision: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(model, method=method, train={"max_steps": 2, "precision": precision})
    shape = read_model(job.model)
    work = work_of(
        job,
        model=shape,
        cluster=parse_hardware(f"cpu:{layout.world_size}"),
        execution=_chosen(layout, precision),
        inventory=take_inventory(job, shape),
    )
    forecast = {rank: one for one in holdings_of(work) for rank in one.ranks(layout)}
    ranks = run_world(layout.world_size, _held, prepare_cell(job, tmp_path), layout, precision)
    for rank, (now, gradients) in enumerate(ranks):
        one = forecast[rank]
        assert (now.weights, now.optimizer, gradients) == (one.weights, one.optimizer, one.gradients), f"rank {rank}"
