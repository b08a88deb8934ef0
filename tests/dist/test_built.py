"""Families without a row in the catalogue, read off what transformers builds, train alike under every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.catalog.stated import UnlistedFamilyError
from shardwise.models.shape import shape_of
from shardwise.plan.inventory import take_inventory
from shardwise.plan.memory import holdings_of
from shardwise.plan.work import work_of
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.model import Split
from shardwise.spec.run import RunDirectory
from shardwise.spec.support import refusal
from shardwise.train.guards import check_trained
from shardwise.train.journal import Journal
from shardwise.train.loop import train
from shardwise.train.memory import Held, held
from shardwise.train.signals import StopFlag
from tests.dist.cells import OPTIMIZERS, Trained, composed, execution, must_equal, outcome, prepare_cell
from tests.dist.worlds import run_world

BOTH: tuple[Split, ...] = ("stages", "slices")
#: How the blocks of each toy are seen to split.
BUILT: dict[str, tuple[Split, ...]] = {
    "cwm": BOTH,
    "hyperclovax": BOTH,
    "jais2": BOTH,
    "ministral3": BOTH,
    "nanochat": (),
    "persimmon": (),
}
LAYOUTS: dict[str, Layout] = {
    "ddp": Layout(dp_replicate=2),
    "fsdp": Layout(dp_shard=2),
    "mp": Layout(pp=2, schedule="sequential"),
    "pp": Layout(pp=2),
    "tp": Layout(tp=2),
}
STEPS = 4
CELLS = [
    (family, method, layout)
    for family, splits in BUILT.items()
    for layout in LAYOUTS
    for method in ("full", "lora")
    if {"mp": "stages", "pp": "stages", "tp": "slices"}.get(layout, "") in ("", *splits)
]


def job_of(make_job: Callable[..., Job], family: str, method: str) -> Job:
    return make_job(family, method=method, train={**OPTIMIZERS["sgd"], "max_steps": STEPS, "warmup_steps": 1})


def _rank(run: RunDirectory, chosen: Execution) -> tuple[Trained, Held]:
    built = composed(run, chosen)
    planned = take_inventory(built.job, built.model.shape).trained_elements
    check_trained(built.world, built.model.parameters, ownership=built.model.ownership, planned=planned)
    train(built, start=0, journal=Journal(run=run, rank=built.world.rank), stop=StopFlag())
    return outcome(run, built), held((p for _, p in built.model.parameters), built.optimizer)


@pytest.fixture(scope="module")
def single(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """One process, the whole global batch in one forward."""
    known: dict[tuple[str, str], Trained] = {}

    def run(family: str, method: str) -> Trained:
        if (family, method) not in known:
            prepared = prepare_cell(job_of(make_job, family, method), tmp_path_factory.mktemp("single"))
            known[family, method] = run_world(1, _rank, prepared, execution(optimizer="sgd"))[0][0]
        return known[family, method]

    return run


@pytest.mark.parametrize("family", BUILT)
def test_a_family_without_a_row_is_read_off_its_build(family: str, models: dict[str, Path]) -> None:
    with pytest.raises(UnlistedFamilyError, match="has no row in the catalogue, and was not built"):
        read_model(str(models[family]))
    shape = shape_of(str(models[family]))
    assert shape.built == BUILT[family]
    for layout, split in (("mp", "stages"), ("pp", "stages"), ("tp", "slices")):
        refused = refusal(method="full", layout=LAYOUTS[layout], model=shape)
        assert (refused is None) == (split in BUILT[family]), refused


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method", "layout"), CELLS)
def test_a_layout_trains_as_one_process_does_and_ranks_hold_what_is_planned(
    family: str, method: str, layout: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = job_of(make_job, family, method)
    micro = 4 if LAYOUTS[layout].data_world_size > 1 or LAYOUTS[layout].pp > 1 else 8
    chosen = execution(
        LAYOUTS[layout],
        optimizer="sgd",
        micro_batch_size=micro,
        gradient_accumulation_steps=8 // (micro * LAYOUTS[layout].data_world_size),
    )
    ranks = run_world(2, _rank, prepare_cell(job, tmp_path), chosen)
    assert len(ranks[0][0].metrics) == STEPS
    must_equal(single(family, method), [trained for trained, _ in ranks])
    model = shape_of(job.model)
    work = work_of(
        job, model=model, cluster=parse_hardware("cpu:2"), execution=chosen, inventory=take_inventory(job, model)
    )
    planned = {rank: holding for holding in holdings_of(work) for rank in holding.ranks(chosen.layout)}
    for rank, (_, now) in enumerate(ranks):
        assert (now.weights, now.optimizer) == (planned[rank].weights, planned[rank].optimizer)
