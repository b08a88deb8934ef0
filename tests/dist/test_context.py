"""Context parallel: what the support matrix leaves out trains as one process does too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import OPTIMIZERS, PAIRS, ZERO1, must_equal, spread, train_cell

CP2 = Layout(cp=2)
CELLS: dict[str, Execution] = {
    "cp(2)": spread(CP2),
    "cp(2), recompute": spread(CP2, micros=2, gradient_checkpointing="full"),
    "cp(2), selective": spread(CP2, gradient_checkpointing="selective"),
    "cp(3)": spread(Layout(cp=3)),
    "ddp(2) x cp(2)": spread(Layout(dp_replicate=2, cp=2), micros=2),
    "fsdp(2) x cp(2)": spread(Layout(dp_shard=2, cp=2), micros=2),
    "hsdp(2 x 2) x cp(2)": spread(Layout(dp_replicate=2, dp_shard=2, cp=2), micros=2),
    "zero1(2) x cp(2)": spread(Layout(dp_shard=2, cp=2, **ZERO1), micros=2),
    "tp(2) x cp(2)": spread(Layout(tp=2, cp=2)),
    "fsdp(2) x tp(2) x cp(2)": spread(Layout(dp_shard=2, tp=2, cp=2), micros=2),
    "1f1b(2) x cp(2)": spread(Layout(pp=2, cp=2), micros=4),
    "zero_bubble(2) x cp(2)": spread(Layout(pp=2, cp=2, schedule="zero_bubble"), micros=4),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_parts_of_sequences_train_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    must_equal(single(job), train_cell(job, tmp_path, replace(CELLS[cell], optimizer="sgd")))
