"""Stages with nothing to train, because adapters lie elsewhere: they pass on what others train
by"""

from dataclasses import replace
from typing import Any

import pytest
from safetensors.torch import load_file

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import ZERO1, ZERO2, move, spread, train_cell
from tests.dist.compare import must_be_the_same
from tests.dist.test_final import finish
from tests.marks import every

#: Trained weights lie on the last stage, or on both ends, and not in the middle one of three.
TARGETS: dict[str, dict[str, Any]] = {
    "head": {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head"]},
    "both ends": {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]},
}

CELLS: dict[str, Execution] = {
    "mp(2)": spread(Layout(pp=2, schedule="sequential")),
    "1f1b(3)": spread(Layout(pp=3), micros=4),
    "zero_bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "ddp(2) x gpipe(2)": spread(Layout(dp_replicate=2, pp=2, schedule="gpipe"), micros=2),
    "fsdp(2) x 1f1b(2)": spread(Layout(dp_shard=2, pp=2), micros=2),
    "fsdp(2) x 1f1b(2), offload, recompute": spread(
        Layout(dp_shard=2, pp=2), micros=2, offload="all", gradient_checkpointing="full"
    ),
    "fsdp(2) x interleaved(2)": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4),
    "zero1(2) x 1f1b(2)": spread(Layout(dp_shard=2, pp=2, **ZERO1), micros=2, offload="optimizer"),
    "zero2(2) x zero_bubble(2)": spread(Layout(dp_shard=2, pp=2, schedule="zero_bubble", **ZERO2), micros=4),
    "1f1b(2) x tp(2)": spread(Layout(pp=2, tp=2), micros=4),
}

#: Of each, by what is trained: the ranks that have nothing to train.
IDLE = [*(("head", name, 0) for name in CELLS), ("both ends", "1f1b(3)", 1)]


@pytest.mark.parametrize(("targets", "cell", "idle"), every(2, IDLE))
def test_a_pipeline_with_an_idle_stage_trains_as_one_process_does(targets, cell, idle, must_train_alike) -> None:
    _, ranks = must_train_alike(CELLS[cell], "deep untied", method="lora", lora=TARGETS[targets])
    assert [not rank.weights for rank in ranks].index(True) == idle


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_foreach"])
def test_an_idle_stage_stops_and_goes_on_and_what_is_saved_is_the_adapter(optimizer, make_job, tmp_path) -> None:
    train = {"learning_rate": 0.05, "max_steps": 4, "optimizer": optimizer}
    job = make_job("deep untied", method="lora", lora=TARGETS["head"], train=train)
    chosen = replace(CELLS["fsdp(2) x 1f1b(2)"], optimizer=optimizer)
    whole = train_cell(job, tmp_path / "whole", chosen)
    must_be_the_same(whole, move(job, tmp_path / "stopped", chosen, chosen, at=2))
    final, _, _ = finish(job, tmp_path / "final", chosen)
    saved = {name.rpartition("base_model.model.")[2] for name in load_file(final / "adapter_model.safetensors")}
    assert saved == {"lm_head.lora_A.weight", "lm_head.lora_B.weight"}
