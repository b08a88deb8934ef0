"""What would give rows another result for those beside them, or ranks other blocks, is refused before loading."""

from dataclasses import replace
from typing import Any

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.errors import ModelError
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.trained import impossibilities, not_trained, refusal


def shape(family: str, **config: Any) -> ModelShape:
    return shape_from_data({"model_type": family, **config}, file="config.json")


def execution(**degrees: Any) -> Execution:
    return Execution(layout=Layout(**degrees), micro_batch_size=1, gradient_accumulation_steps=1)


def said(model: ModelShape, **data: Any) -> list[str]:
    return not_trained(Job.model_validate({"model": "m", "data": data}), execution(), model=model)


@pytest.mark.parametrize("family", ["bloom", "falcon", "mpt", "opt"])
def test_packing_is_refused_where_a_model_s_code_cannot_tell_documents_apart(family: str) -> None:
    (sentence,) = said(shape(family), packing=True)
    assert sentence.startswith(f"packing is not trained for {family}, ")
    assert said(shape(family), packing=False) == said(shape("llama"), packing=True) == []


@pytest.mark.parametrize(
    ("model", "kernel", "why"),
    [
        (shape("llama"), "varlen", None),
        (shape("stablelm"), "varlen", "is not told by stablelm's code in transformers where packed documents lie"),
        (shape("stablelm"), "flash_attention_2", "is not told by stablelm's code in transformers"),
        (replace(shape("llama"), built=("slices",)), "varlen", "is not told by llama's code"),
        (replace(shape("llama"), built=("documents",)), "varlen", None),
        (shape("mistral", sliding_window=16), "varlen", "has no window, and this model's is 16 tokens"),
        (shape("mistral", sliding_window=16), "flash_attention_2", None),
        (shape("gemma2"), "varlen", "cannot cap scores"),
        (shape("llama", head_dim=20), "varlen", "wants heads of keys and values alike, at most 256 wide"),
        (shape("gpt2"), "varlen", "drops nothing out, as this model does without train.disable_dropout: true"),
    ],
)
def test_kernels_that_are_told_of_documents_say_what_they_lack(
    model: ModelShape, kernel: Attention, why: str | None
) -> None:
    def found(**data: Any) -> list[str]:
        job = Job.model_validate({"model": "m", "data": {"max_length": 64, **data}})
        return impossibilities(job, replace(execution(), attn_implementation=kernel), model=model)

    said = [
        sentence.removeprefix(f"attn_implementation {kernel} ")[: len(why or "")] for sentence in found(packing=True)
    ]
    assert said == ([why] if why else [])
    assert len(found()) == (kernel == "varlen"), "which is for packed rows"


@pytest.mark.parametrize(
    ("config", "steady"),
    [
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, 4096),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
        *(({"rope_scaling": {"rope_type": kind, "factor": 8.0}}, None) for kind in ("default", "linear", "yarn")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, None),
    ],
)
def test_rotary_positions_that_follow_the_longest_sequence(config: dict[str, Any], steady: int | None) -> None:
    model = shape("llama", max_position_embeddings=8192, **config)
    assert said(model, max_length=steady or 100_000) == []
    if steady is not None:
        (sentence,) = said(model, max_length=steady + 1)
        assert sentence.startswith(f"max_length {steady + 1} is not trained: beyond {steady} tokens ")
        assert sentence.endswith(f"use max_length: {steady} or less")


@pytest.mark.parametrize(("tp", "length", "mended"), [(4, 62, None), (3, 64, 63), (3, 63, None), (5, 64, 60)])
def test_rows_that_a_layout_makes_too_long_are_refused(tp: int, length: int, mended: int | None) -> None:
    heads = {"num_attention_heads": 60, "num_key_value_heads": 60, "hidden_size": 960}
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    model = shape("llama", max_position_embeddings=64, rope_scaling=scaling, **heads)
    job = Job.model_validate({"model": "m", "data": {"path": "rows", "max_length": length}})
    assert impossibilities(job, execution(), model=model) == []
    found = impossibilities(job, execution(tp=tp), model=model)
    assert len(found) == (mended is not None)
    for sentence in found:
        assert sentence.startswith(f"tp rounds rows up to a multiple of {tp}, those of max_length {length} to ")
        assert sentence.endswith(f"use max_length: {mended} or less, or another layout")


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)])
def test_blocks_that_are_left_out_at_random_are_refused_on_several_ranks(layout: Layout) -> None:
    dropping = shape("opt", layerdrop=0.1)
    sentence = refusal(method="full", layout=layout, model=dropping) or ""
    assert sentence.startswith("layerdrop 0.1 is not trained on several ranks: ")
    assert sentence.endswith("one process, or set train.disable_dropout: true")
    assert refusal(method="full", layout=Layout(), model=dropping) is None
    # llama's code does not read the key.
    for trained in (shape("opt", layerdrop=0.0), shape("opt"), shape("llama", layerdrop=0.1)):
        assert refusal(method="full", layout=layout, model=trained) is None
    for disabled in (False, True):
        job = Job.model_validate({"model": "m", "train": {"disable_dropout": disabled}})
        assert (not_trained(job, execution(dp_shard=2), model=dropping) == []) == disabled


@pytest.mark.parametrize("value", ["0.1", True, -0.1, 1.5, None])
def test_a_chance_that_is_none_is_named(value: object) -> None:
    with pytest.raises(ModelError, match=r"layerdrop is .*; expected a number from 0 to 1"):
        shape("opt", layerdrop=value)


def test_a_family_that_is_not_sliced_either_is_told_with_it() -> None:
    sentence = refusal(method="full", layout=Layout(tp=2), model=shape("opt", layerdrop=0.1)) or ""
    told = "opt is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: fsdp, with "
    assert sentence.startswith(f"{told}train.disable_dropout: true; layerdrop 0.1 ")
    assert sentence.endswith("one process, or set train.disable_dropout: true")
