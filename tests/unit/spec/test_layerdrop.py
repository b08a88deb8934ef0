"""Blocks that are left out at random would be other ones on each rank, which then wait for each other: refused."""

from __future__ import annotations

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.errors import ModelError
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.support import not_trained, open_refusal, refusal


def shape(family: str = "opt", **config: object) -> ModelShape:
    return shape_from_data({"model_type": family, **config}, file="config.json")


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)])
def test_blocks_that_are_left_out_at_random_are_refused_on_several_ranks(layout: Layout) -> None:
    sentence = refusal(method="full", layout=layout, model=shape(layerdrop=0.1))
    assert sentence is not None
    assert sentence.startswith("layerdrop 0.1 is not trained on several ranks: ")
    assert sentence.endswith("one process, or set train.disable_dropout: true")
    assert open_refusal(method="full", layout=layout, model=shape(layerdrop=0.1)) == sentence
    assert refusal(method="full", layout=layout, model=shape(layerdrop=0.0)) is None
    for trained in (shape(), shape("llama", layerdrop=0.1)):  # llama's code does not read the key
        assert refusal(method="full", layout=layout, model=trained) is None
    assert refusal(method="full", layout=Layout(), model=shape(layerdrop=0.1)) is None


@pytest.mark.parametrize("disabled", [False, True])
def test_a_job_that_disables_dropout_leaves_no_block_out(disabled: bool) -> None:
    job = Job.model_validate({"model": "m", "train": {"disable_dropout": disabled}})
    execution = Execution(layout=Layout(dp_shard=2), micro_batch_size=1, gradient_accumulation_steps=1)
    assert (not_trained(job, execution, model=shape(layerdrop=0.1)) == []) == disabled


@pytest.mark.parametrize("value", ["0.1", True, -0.1, 1.5, None])
def test_a_chance_that_is_none_is_named(value: object) -> None:
    with pytest.raises(ModelError, match=r"layerdrop is .*; expected a number from 0 to 1"):
        shape(layerdrop=value)


def test_a_family_that_is_not_sliced_either_is_told_with_it() -> None:
    said = refusal(method="full", layout=Layout(tp=2), model=shape(layerdrop=0.1)) or ""
    told = "opt is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: fsdp, with "
    assert said.startswith(f"{told}train.disable_dropout: true; layerdrop 0.1 ")
    assert said.endswith("one process, or set train.disable_dropout: true")
