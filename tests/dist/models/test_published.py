"""A model that is published in fewer bits trains as the same model does that lies in 16 bits."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from shardwise.models.load import load_wide
from shardwise.models.wrapper import auto_class
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory
from tests.dist.cells import OPTIMIZERS, spread, train_cell
from tests.dist.compare import must_equal
from tests.dist.saved.test_final import finish, loss_of
from tests.dist.saved.test_merge_and_chat import merged
from tests.publishing import publish_fp8

#: Blocks of 12 or 16 elements go over the ends of slices and shards.
CELLS = {
    "single": ("untied", spread()),
    "fsdp(3)": ("untied", spread(Layout(dp_shard=3))),
    "tp(2)": ("untied", spread(Layout(tp=2))),
    "fsdp(2) x tp(2)": ("untied", spread(Layout(dp_shard=2, tp=2))),
    "1f1b(2)": ("untied", spread(Layout(pp=2), micros=2)),
    "fsdp(2), experts": ("qwen3_moe", spread(Layout(dp_shard=2))),
    "fsdp(2) x ep(2)": ("qwen3_moe", spread(Layout(dp_shard=2, ep=2))),
}


@pytest.fixture
def published(models, make_job, tmp_path) -> Callable[..., tuple[Job, Job]]:
    """Makes a job on a model in FP8, and the same on what its weights are widened to."""

    def make(name: str, **keys: object) -> tuple[Job, Job]:
        few, wide = tmp_path / "few", tmp_path / "wide"
        for folder in (few, wide):
            shutil.copytree(models[name], folder)
        load_wide(publish_fp8(few, block=12), dtype=torch.bfloat16).save_pretrained(wide)
        return make_job(few, **keys), make_job(wide, **keys)

    return make


@pytest.mark.parametrize("cell", CELLS)
def test_every_layout_widens_its_parts_to_the_same_weights(cell, published, tmp_path) -> None:
    name, chosen = CELLS[cell]
    job, _ = published(name, train=OPTIMIZERS["sgd"])
    (alone,) = train_cell(job, tmp_path / "alone", spread(optimizer="sgd"))
    must_equal(alone, train_cell(job, tmp_path / "spread", replace(chosen, optimizer="sgd")))


@pytest.mark.slow
def test_frozen_weights_are_those_of_the_model_in_16_bits(published, tmp_path) -> None:
    jobs = published("qwen3_moe", method="lora", train={"max_steps": 3})
    chosen = spread(Layout(dp_shard=2), precision="mixed")
    few, wide = (train_cell(job, tmp_path / str(index), chosen)[0] for index, job in enumerate(jobs))
    assert few.frozen == wide.frozen
    assert few.series("loss") == wide.series("loss")


@pytest.mark.parametrize("name", ["qwen3_moe", "inside gemma3"])  # of which the tower is in 8 bits too
def test_the_result_is_saved_in_16_bits_as_from_pretrained_reads_it(name, published, tmp_path) -> None:
    job, wide = published(name, train={"max_steps": 3})
    final, _, loss = finish(job, tmp_path / "run", CELLS["fsdp(2), experts"][1])
    assert "quantization_config" not in (config := (final / "config.json").read_text())
    assert json.loads(config)["dtype"] == "bfloat16"
    assert {one.dtype for file in final.glob("*.safetensors") for one in load_file(file).values()} == {torch.bfloat16}
    loader: Any = auto_class(AutoConfig.from_pretrained(final))
    loaded, info = loader.from_pretrained(final, dtype=torch.float32, output_loading_info=True)
    before = loader.from_pretrained(wide.model).state_dict()
    assert all(torch.equal(one.bfloat16(), before[n]) for n, one in loaded.state_dict().items() if "vision" in n)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loss_of(loaded.eval(), final) == pytest.approx(loss, rel=2e-3)


def test_an_adapter_is_of_the_published_base_and_is_merged_into_it(published, tmp_path) -> None:
    job, _ = published("untied", method="lora", train={"max_steps": 3, "learning_rate": 0.01})
    final, *_ = finish(job, tmp_path / "run", CELLS["fsdp(3)"][1])
    assert json.loads((final / "adapter_config.json").read_text())["base_model_name_or_path"] == "few"
    run = RunDirectory(final.parent)
    said = merged(run)
    assert (said["onto"], said["dtype"]) == ("base", "bfloat16")
    assert "quantization_config" not in json.loads((run.merged / "config.json").read_text())
