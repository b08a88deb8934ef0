"""Tensor parallel: slices of every matrix, alone and with data parallelism, train as one process does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from tests.dist.cells import Trained, execution, must_equal, relative, train_cell

TP2 = Layout(tp=2)
CELLS: dict[str, Execution] = {
    "tp(2)": execution(TP2),
    "tp(2), accumulation 4": execution(TP2, micro_batch_size=2, gradient_accumulation_steps=4),
    "tp(2), recompute, chunked": execution(
        TP2, micro_batch_size=4, gradient_accumulation_steps=2, gradient_checkpointing="full", loss="chunked"
    ),
    "tp(2), selective": execution(TP2, gradient_checkpointing="selective"),
    "ddp(2) x tp(2)": execution(Layout(dp_replicate=2, tp=2), micro_batch_size=2, gradient_accumulation_steps=2),
    "fsdp(2) x tp(2)": execution(Layout(dp_shard=2, tp=2), micro_batch_size=2, gradient_accumulation_steps=2),
    "zero2(2) x tp(2)": execution(
        Layout(dp_shard=2, tp=2, zero_stage=2, reshard_after_forward=False), micro_batch_size=4
    ),
    "zero1(2) x tp(2)": execution(
        Layout(dp_shard=2, tp=2, zero_stage=1, reshard_after_forward=False),
        micro_batch_size=2,
        gradient_accumulation_steps=2,
    ),
    "zero1(3) x tp(2), uneven": execution(
        Layout(dp_shard=3, tp=2, zero_stage=1, reshard_after_forward=False),
        micro_batch_size=2,
        gradient_accumulation_steps=2,
    ),
    "zero1(2) x 1f1b(2) x tp(2)": execution(
        Layout(dp_shard=2, pp=2, tp=2, zero_stage=1, reshard_after_forward=False),
        micro_batch_size=2,
        gradient_accumulation_steps=2,
    ),
    "hsdp(2 x 2) x tp(2)": execution(Layout(dp_replicate=2, dp_shard=2, tp=2), micro_batch_size=2),
    "mp(2) x tp(2)": execution(Layout(pp=2, tp=2, schedule="sequential")),
    "1f1b(2) x tp(2)": execution(Layout(pp=2, tp=2), micro_batch_size=2, gradient_accumulation_steps=4),
    "zero_bubble(2) x tp(2)": execution(
        Layout(pp=2, tp=2, schedule="zero_bubble"), micro_batch_size=2, gradient_accumulation_steps=4
    ),
    "fsdp(2) x 1f1b(2) x tp(2)": execution(
        Layout(dp_shard=2, pp=2, tp=2), micro_batch_size=2, gradient_accumulation_steps=2
    ),
}
#: Beside the tied Llama, which goes through all of them.
SOME = ("tp(2)", "fsdp(2) x tp(2)", "1f1b(2) x tp(2)")


PAIRS = [(model, cell) for model in ("tied", "untied") for cell in CELLS]
PAIRS += [(model, cell) for model in ("qwen2", "qwen3") for cell in SOME]
TABLE = [(method, model, cell) for method in ("full", "lora") for model, cell in PAIRS]


def _row(method: str, model: str, cell: str) -> Any:
    """What the tied model shows too is left to `make test-all`."""
    slow = model == "untied" and cell not in SOME
    return pytest.param(method, model, cell, marks=[pytest.mark.slow] if slow else [])


@pytest.fixture(scope="module")
def single(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """One process, the whole global batch in one forward."""
    known: dict[Any, Trained] = {}

    def run(model: str, method: str = "full", lora: Any = None) -> Trained:
        key = (model, method, json.dumps(lora))
        if key not in known:
            root = tmp_path_factory.mktemp("single")
            known[key] = train_cell(job_of(make_job, model, method, lora), root, execution(optimizer="sgd"))[0]
        return known[key]

    return run


def job_of(make_job: Callable[..., Job], model: str, method: str, lora: Any = None) -> Job:
    train = {"learning_rate": 0.05, "optimizer": "sgd"}
    return make_job(model, method=method, train=train, **({"lora": lora} if lora else {}))


@pytest.mark.parametrize(("method", "model", "cell"), [_row(*cell) for cell in TABLE])
def test_slices_train_as_one_process_does(
    method: str, model: str, cell: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    chosen = replace(CELLS[cell], optimizer="sgd")
    must_equal(single(model, method), train_cell(job_of(make_job, model, method), tmp_path, chosen))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_four_slices_train_as_one_process_does(
    method: str, single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    model = "four key-value heads"
    ranks = train_cell(job_of(make_job, model, method), tmp_path, execution(Layout(tp=4), optimizer="sgd"))
    must_equal(single(model, method), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [["q_proj", "o_proj"], ["down_proj", "lm_head"]], ids=["attention", "head"])
def test_adapters_of_named_matrices_train_as_on_one_process(
    targets: list[str], single: Callable[..., Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    lora = {"r": 4, "lora_alpha": 8, "target_modules": targets}
    chosen = execution(Layout(dp_shard=2, tp=2), micro_batch_size=4, optimizer="sgd")
    ranks = train_cell(job_of(make_job, "untied", "lora", lora), tmp_path, chosen)
    must_equal(single("untied", "lora", lora), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "dora"])
def test_adamw_and_mixed_precision_stay_near(method: str, make_job: Callable[..., Job], tmp_path: Path) -> None:
    """In bfloat16 sums over slices round otherwise, so that this is no proof; it shows that nothing is left out."""
    asked: dict[str, Any] = {"full": {}, "dora": {"method": "lora", "lora": {"r": 4, "use_dora": True}}}[method]
    rate = {"full": 5e-4, "dora": 5e-3}[method]
    losses: list[list[float]] = []
    for layout in (Layout(), TP2, Layout(dp_shard=2, tp=2)):
        chosen = execution(layout, precision="mixed", micro_batch_size=8 // layout.data_world_size)
        job = make_job("tied", train={"precision": "mixed", "learning_rate": rate, "max_steps": 10}, **asked)
        losses.append(train_cell(job, tmp_path / str(layout.world_size), chosen)[0].series("loss"))
    assert relative(losses[0], losses[1]) < 5e-3
    assert relative(losses[0], losses[2]) < 5e-3
    assert losses[0][-1] < losses[0][0] - 0.1
