"""Mixtures of experts train as one process does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.spec.layout.axes import Layout
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, Execution, forecast_holdings, must_equal, spread, train_cell

CELLS: dict[str, Execution] = {
    "fsdp(2)": spread(Layout(dp_shard=2), micros=2),
    "ddp(2)": spread(Layout(dp_replicate=2), micros=2),
    "zero1(2)": spread(Layout(dp_shard=2, **ZERO1)),
    "zero2(2)": spread(Layout(dp_shard=2, **ZERO2), micros=2),
    "fsdp(4), recompute": spread(Layout(dp_shard=4), gradient_checkpointing="full"),
    "hsdp(2 x 2), selective": spread(Layout(dp_replicate=2, dp_shard=2), gradient_checkpointing="selective"),
    "mp(2)": spread(Layout(pp=2, schedule="sequential"), micros=2),
    "gpipe(2)": spread(Layout(pp=2, schedule="gpipe"), micros=4),
    "1f1b(2), recompute": spread(Layout(pp=2), micros=4, gradient_checkpointing="full"),
    "interleaved(2)": spread(Layout(pp=2, schedule="interleaved"), micros=4),
    "zero bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "1f1b x fsdp": spread(Layout(pp=2, dp_shard=2), micros=2),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "qwen2_moe", "olmoe"])
def test_experts_train_as_one_process_does(model, method, cell, single, make_job, tmp_path) -> None:
    chosen = replace(CELLS[cell], optimizer="sgd")
    if model == "olmoe" and chosen.layout.pp > 1:
        pytest.skip("transformers has no plan of its stages")
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    must_equal(single(job), train_cell(job, tmp_path, chosen))
