"""What is gathered together, and how far ahead: the same training, and as many whole weights alive as are forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.parallel.postponed import groups_of
from shardwise.plan.memory.buffers import gathered
from shardwise.plan.memory.forecast import holdings_of
from shardwise.plan.memory.inventory import take_inventory
from shardwise.plan.memory.work import Flight, Scene, work_of
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from tests.dist.cells import Trained, composed, execution, parity_job, prepare_cell, relative, train_cell
from tests.dist.worlds import run_world

TOLERANCE = 1e-5

#: Parameters of two of the toys' blocks: more than those of one, with adapters or without.
TWO = 15_000
ALL = 10**9

ZERO2 = {"zero_stage": 2, "reshard_after_forward": False}
CELLS: dict[str, Execution] = {
    "two blocks a unit": execution(Layout(dp_shard=2, min_num_params=TWO), micro_batch_size=4),
    "all blocks a unit, recompute": execution(
        Layout(dp_shard=2, min_num_params=ALL), micro_batch_size=4, gradient_checkpointing="full"
    ),
    "zero2, two blocks a unit, accumulation 2": execution(
        Layout(dp_shard=2, min_num_params=TWO, **ZERO2), micro_batch_size=2, gradient_accumulation_steps=2
    ),
    "two ahead": execution(Layout(dp_shard=2, prefetch=2), micro_batch_size=4),
    "more ahead than there are, recompute, accumulation 2": execution(
        Layout(dp_shard=2, prefetch=9),
        micro_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing="full",
    ),
    "hsdp, two ahead": execution(Layout(dp_replicate=2, dp_shard=2, prefetch=2), micro_batch_size=2),
    "tp, two blocks a unit, two ahead": execution(
        Layout(dp_shard=2, tp=2, min_num_params=TWO, prefetch=2), micro_batch_size=4
    ),
    "1f1b, two blocks a unit, two ahead": execution(
        Layout(pp=2, dp_shard=2, min_num_params=TWO, prefetch=2), micro_batch_size=2, gradient_accumulation_steps=2
    ),
    "from the host, two ahead": execution(Layout(dp_shard=2, prefetch=2), micro_batch_size=4, offload="parameters"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_units_and_prefetch_change_nothing_of_a_training(
    method: str, cell: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    expected = single(method, "tied")
    found = train_cell(parity_job(make_job, method, "tied", "adamw"), tmp_path, CELLS[cell])[0]
    assert len(found.metrics) == 20
    for key in ("loss", "grad_norm"):
        assert relative(expected.series(key), found.series(key)) <= TOLERANCE
    assert found.series("learning_rate") == expected.series("learning_rate")


def _groups(root: nn.Module) -> Iterator[Any]:
    """FSDP's groups of parameters that are gathered together, the root's left out."""
    seen: set[int] = set()
    for module in root.modules():
        if isinstance(module, FSDPModule):
            for group in groups_of(module._get_fsdp_state()):
                if id(group) not in seen and root not in group.modules:
                    seen.add(id(group))
                    yield group


def _alive(run: RunDirectory, chosen: Execution) -> tuple[int, int, int]:
    """Units; and the most elements that are gathered, or on their way, when a block begins forward and backward."""
    built = composed(run, chosen)
    (root,) = built.model.spread.modules
    groups = list(_groups(root))
    most = {"forward": 0, "backward": 0}

    def look(when: str) -> None:
        here = [g for g in groups if g.is_unsharded or g._all_gather_result is not None]
        count = sum(one.sharded_param.numel() for group in here for one in group.fsdp_params)
        most[when] = max(most[when], count)

    for block in {id(module): module for group in groups for module in group.modules}.values():
        block.register_forward_hook(lambda *_: look("forward"), prepend=True)
        block.register_full_backward_pre_hook(lambda *_: look("backward"))
    built.step(next(iter(built.batches.from_(0))))
    return len(groups), most["forward"], most["backward"]


@pytest.mark.parametrize(
    ("layout", "units", "blocks"),
    [
        (Layout(dp_shard=2, prefetch=2), 4, 3),
        (Layout(dp_shard=2, prefetch=3), 4, 4),
        (Layout(dp_shard=2, min_num_params=TWO, prefetch=1), 2, 2),
        (Layout(dp_shard=2, min_num_params=TWO, prefetch=2), 2, 4),
        (Layout(dp_shard=2, min_num_params=3 * TWO // 2, prefetch=1), 2, 3),
        (Layout(dp_shard=2, min_num_params=ALL), 1, 4),
    ],
)
def test_as_many_blocks_are_gathered_as_the_layout_says(
    layout: Layout, units: int, blocks: int, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job("deep tied")
    found, forward, _ = run_world(2, _alive, prepare_cell(job, tmp_path), execution(layout, micro_batch_size=4))[0]
    model = read_model(job.model)
    of_block = model.block_parameters // model.num_layers
    assert found == units
    assert forward == blocks * of_block
    work = work_of(
        job,
        model=model,
        cluster=parse_hardware("cpu:2"),
        execution=execution(layout, micro_batch_size=4),
        inventory=take_inventory(job, model),
    )
    (holding, *_) = holdings_of(work)
    scene = Scene(work, holding, Flight())
    root = gathered(scene, units=0)
    # FSDP2's own prefetch is a gather that runs beside the computation, which processors do one after the other.
    asked = 2 if layout.prefetch > 1 else 1
    assert gathered(scene, units=asked) - root == forward * work.types.compute
