"""Tensor parallel: what the support matrix leaves out trains as one process does too."""

from dataclasses import replace
from typing import Any

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import OPTIMIZERS, PAIRS, ZERO1, must_equal, relative, spread, train_cell

TP2, FSDP = Layout(tp=2), Layout(dp_shard=2, tp=2)
CELLS: dict[str, Execution] = {
    "tp(2)": spread(TP2),
    "tp(2), recompute": spread(TP2, micros=2, gradient_checkpointing="full"),
    "tp(2), selective": spread(TP2, gradient_checkpointing="selective"),
    "fsdp(2) x tp(2)": spread(FSDP, micros=2),
    "fsdp(2) x tp(2), reduced once": spread(FSDP, micros=2, reduce_once=True),
    "zero1(3) x tp(2), uneven": spread(Layout(dp_shard=3, tp=2, **ZERO1), micros=2),
    "mp(2) x tp(2)": spread(Layout(pp=2, tp=2, schedule="sequential")),
    "1f1b(2) x tp(2)": spread(Layout(pp=2, tp=2), micros=4),
    "zero_bubble(2) x tp(2)": spread(Layout(pp=2, tp=2, schedule="zero_bubble"), micros=4),
    "zero1(2) x 1f1b(2) x tp(2)": spread(Layout(dp_shard=2, pp=2, tp=2, **ZERO1), micros=2),
    "tp(4)": spread(Layout(tp=4)),
}
#: Of other families; four slices need four heads.
OTHERS = {"tp(2)": "qwen2", "fsdp(2) x tp(2)": "qwen3", "1f1b(2) x tp(2)": "qwen2"}
TABLE = [(method, model, cell) for cell in CELLS if cell != "tp(4)" for method, model in PAIRS]
TABLE += [(method, model, cell) for cell, model in OTHERS.items() for method in ("full", "lora")]
TABLE += [(method, "four key-value heads", "tp(4)") for method in ("full", "lora")]


@pytest.mark.parametrize(("method", "model", "cell"), TABLE)
def test_slices_train_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    must_equal(single(job), train_cell(job, tmp_path, replace(CELLS[cell], optimizer="sgd")))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [FSDP, TP2])
@pytest.mark.parametrize("method", ["full", "dora"])
def test_adamw_and_mixed_precision_stay_near(method, layout, make_job, tmp_path) -> None:
    """In bfloat16 sums over slices round otherwise, so that this is no proof; it shows that nothing is left out."""
    asked: dict[str, Any] = {"full": {}, "dora": {"method": "lora", "lora": {"r": 4, "use_dora": True}}}[method]
    rate = {"full": 5e-4, "dora": 5e-3}[method]
    losses: list[list[float]] = []
    for one in (Layout(), layout):
        chosen = spread(one, precision="mixed")
        job = make_job("tied", train={"precision": "mixed", "learning_rate": rate, "max_steps": 10}, **asked)
        losses.append(train_cell(job, tmp_path / str(one.world_size), chosen)[0].series("loss"))
    assert relative(losses[0], losses[1]) < 5e-3
    assert losses[0][-1] < losses[0][0] - 0.1
