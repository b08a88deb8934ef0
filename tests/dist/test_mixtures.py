"""Mixtures of experts of every kind of routing train as plain transformers, and as one process, under every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import OPTIMIZERS, TOLERANCE, ZERO1, ZERO2, must_equal, relative, spread, train_cell
from tests.dist.reference import reference_losses

FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "llama4_text", "phimoe")

LAYOUTS: dict[str, Execution] = {
    "ddp": spread(Layout(dp_replicate=2), micros=2),
    "zero1": spread(Layout(dp_shard=2, **ZERO1)),
    "zero2": spread(Layout(dp_shard=2, **ZERO2)),
    "fsdp": spread(Layout(dp_shard=2), micros=2, gradient_checkpointing="full"),
}

#: What one process does with the same batches.
ONE = {"layout": Layout(), "micro_batch_size": 8, "gradient_accumulation_steps": 1}

#: Those whose code has no other attention than the one written out.
EAGER = ("gpt_oss",)


def _of(family: str, chosen: Execution) -> Execution:
    return replace(chosen, attn_implementation="eager" if family in EAGER else "sdpa")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_process_trains_a_mixture_as_transformers_does(family, make_job, tmp_path) -> None:
    job = make_job(family, train={"max_steps": 6})
    theirs = reference_losses(job, tmp_path / "theirs", training=family != "phimoe")
    ours = train_cell(job, tmp_path / "ours", _of(family, spread()))[0]
    assert relative(theirs, ours.series("loss")) <= TOLERANCE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixture_trains_as_on_one_process(family, method, layout, make_job, tmp_path) -> None:
    job = make_job(family, method=method, train={**OPTIMIZERS["sgd"], "max_steps": 6})
    chosen = _of(family, replace(LAYOUTS[layout], optimizer="sgd"))
    one = train_cell(job, tmp_path / "one", replace(chosen, **ONE))[0]
    must_equal(one, train_cell(job, tmp_path / "spread", chosen))
