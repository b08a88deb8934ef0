"""Families without a row in the catalogue, read off what transformers builds, train alike under every layout."""

import pytest

from shardwise.catalog.models import read_model
from shardwise.catalog.stated import UnlistedFamilyError
from shardwise.models.built.shape import shape_of
from shardwise.plan.work.inventory import take_inventory
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import Split
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import refusal
from shardwise.train.guards.checks import check_trained
from shardwise.train.measuring.memory import Held, held
from tests.dist.cells import (
    OPTIMIZERS,
    Trained,
    composed,
    forecast_holdings,
    must_equal,
    outcome,
    prepare_cell,
    spread,
    train_on,
)
from tests.dist.worlds import run_world

BOTH: tuple[Split, ...] = ("stages", "slices")
#: How the blocks of each toy are seen to split.
BUILT: dict[str, tuple[Split, ...]] = {
    "cwm": BOTH,
    "hyperclovax": BOTH,
    "jais2": BOTH,
    "ministral3": BOTH,
    "nanochat": ("stages",),
    "persimmon": ("stages",),
}
LAYOUTS: dict[str, Layout] = {
    "ddp": Layout(dp_replicate=2),
    "fsdp": Layout(dp_shard=2),
    "mp": Layout(pp=2, schedule="sequential"),
    "pp": Layout(pp=2),
    "tp": Layout(tp=2),
}
CELLS = [
    (family, ("full", "lora")[(row + column) % 2], layout)
    for row, (family, splits) in enumerate(BUILT.items())
    for column, layout in enumerate(LAYOUTS)
    if {"mp": "stages", "pp": "stages", "tp": "slices"}.get(layout, "") in ("", *splits)
]


def _rank(run: RunDirectory, chosen: Execution) -> tuple[Trained, Held]:
    built = composed(run, chosen)
    planned = take_inventory(built.job, built.model.shape).trained_elements
    check_trained(built.world, built.model.parameters, ownership=built.model.ownership, planned=planned)
    train_on(run, built)
    return outcome(run, built), held((p for _, p in built.model.parameters), built.optimizer)


@pytest.mark.parametrize("family", BUILT)
def test_a_family_without_a_row_is_read_off_its_build(family, models) -> None:
    with pytest.raises(UnlistedFamilyError, match="has no row in the catalogue, and was not built"):
        read_model(str(models[family]))
    shape = shape_of(str(models[family]))
    assert shape.built == (*BUILT[family], "documents")  # varlen attention was seen to tell documents apart in each
    for layout, split in (("mp", "stages"), ("pp", "stages"), ("tp", "slices")):
        refused = refusal(method="full", layout=LAYOUTS[layout], model=shape)
        assert (refused is None) == (split in BUILT[family]), refused


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method", "layout"), CELLS)
def test_a_layout_trains_as_one_process_does_and_ranks_hold_what_is_planned(
    family, method, layout, make_job, tmp_path
) -> None:
    job = make_job(family, method=method, train={**OPTIMIZERS["sgd"], "max_steps": 4, "warmup_steps": 1})
    chosen = spread(LAYOUTS[layout], micros=2 if LAYOUTS[layout].pp > 1 else 1, optimizer="sgd")
    (expected, _), *_ = run_world(1, _rank, prepare_cell(job, tmp_path / "one"), spread(optimizer="sgd"))
    ranks = run_world(2, _rank, prepare_cell(job, tmp_path / "two"), chosen)
    must_equal(expected, [trained for trained, _ in ranks])
    planned = forecast_holdings(job, chosen, model=shape_of(job.model))
    for rank, (_, now) in enumerate(ranks):
        assert (now.weights, now.optimizer) == (planned[rank].weights, planned[rank].optimizer)
