"""Blocks that are left out at random would be other ones on each rank, which then wait for each other: refused."""

from __future__ import annotations

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.errors import ModelError
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.support import open_refusal, refusal


def shape(family: str = "opt", **config: object) -> ModelShape:
    return shape_from_data({"model_type": family, **config}, file="config.json")


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)])
def test_blocks_that_are_left_out_at_random_are_refused_on_several_ranks(layout: Layout) -> None:
    sentence = refusal(method="full", layout=layout, model=shape(layerdrop=0.1))
    assert sentence is not None
    assert sentence.startswith("layerdrop 0.1 is not trained on several ranks: ")
    assert sentence.endswith("one process, or set layerdrop to 0 in the model's config.json")
    assert open_refusal(method="full", layout=layout, model=shape(layerdrop=0.1)) == sentence
    assert refusal(method="full", layout=layout, model=shape(layerdrop=0.0)) is None
    assert refusal(method="full", layout=layout, model=shape()) is None


def test_one_process_trains_them() -> None:
    assert refusal(method="full", layout=Layout(), model=shape(layerdrop=0.1)) is None


def test_a_key_that_a_family_s_code_does_not_read_is_no_reason() -> None:
    assert refusal(method="full", layout=Layout(dp_shard=2), model=shape("llama", layerdrop=0.1)) is None


@pytest.mark.parametrize("value", ["0.1", True, -0.1, 1.5, None])
def test_a_chance_that_is_none_is_named(value: object) -> None:
    with pytest.raises(ModelError, match=r"layerdrop is .*; expected a number from 0 to 1"):
        shape(layerdrop=value)
