"""What would give rows another result is refused, and positions are stretched as a job says."""

from dataclasses import replace
from typing import Any

import pytest

from shardwise.catalog.models import config_of, find_model
from shardwise.errors import JobError, UnsupportedError
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import differences
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.trained import impossibilities, not_trained, refusal
from tests.refusals import must_refuse
from tests.unit.plan.asking import Job, Layout, execution, shape_from_data

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


def shape(family: str, **config: Any) -> ModelShape:
    return shape_from_data({"model_type": family, **config}, file="config.json")


def said(model: ModelShape, **data: Any) -> list[str]:
    return not_trained(Job.model_validate({"model": "m", "data": data}), execution(), model=model)


@pytest.mark.parametrize("family", ["bloom", "falcon", "mpt", "opt"])
def test_packing_is_refused_where_a_model_s_code_cannot_tell_documents_apart(family: str) -> None:
    (sentence,) = said(shape(family), packing=True)
    assert sentence.startswith(f"packing is not trained for {family}, ")
    assert said(shape(family), packing=False) == said(shape("llama"), packing=True) == []


def test_experts_that_pytorch_does_not_multiply_together_are_refused() -> None:
    (sentence,) = said(shape("mixtral", intermediate_size=100))
    assert sentence.startswith("experts that read 100 elements are not trained in mixed: PyTorch multiplies them in")
    assert not_trained(Job(model="m"), execution(precision="fp32"), model=shape("mixtral", intermediate_size=100)) == []


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
def test_kernels_that_are_told_of_documents_say_what_they_lack(model, kernel, why) -> None:
    def found(**data: Any) -> list[str]:
        job = Job.model_validate({"model": "m", "data": {"max_length": 64, **data}})
        return impossibilities(job, replace(execution(), attn_implementation=kernel), model=model)

    start = f"attn_implementation {kernel} "
    said = [sentence.removeprefix(start)[: len(why or "")] for sentence in found(packing=True)]
    assert said == ([why] if why else [])
    joined = kernel == "varlen" and why is None and model.built is None
    assert len(found()) == (kernel == "varlen" and not joined), "which is for rows that can be packed"


FACTORS = {"short_factor": [1.0] * 64, "long_factor": [1.0] * 64}


@pytest.mark.parametrize(
    ("config", "steady"),
    [
        ({"rope_scaling": {"type": "longrope", **FACTORS}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {"rope_type": "longrope", **FACTORS, "original_max_position_embeddings": 4096}}, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 8192),
        *(({"rope_scaling": {"rope_type": kind, "factor": 8.0}}, None) for kind in ("default", "linear", "yarn")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}}, None),
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
    model = shape("llama", max_position_embeddings=64, rope_scaling={"rope_type": "dynamic", "factor": 2.0}, **heads)
    job = Job.model_validate({"model": "m", "data": {"path": "rows", "max_length": length}})
    assert impossibilities(job, execution(), model=model) == []
    found = impossibilities(job, execution(Layout(tp=tp)), model=model)
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
        assert (not_trained(job, execution(Layout(dp_shard=2)), model=dropping) == []) == disabled


@pytest.mark.parametrize("value", ["0.1", True, -0.1, 1.5, None])
def test_a_chance_that_is_none_is_named(value: object) -> None:
    assert shape("opt", layerdrop=value).untrained.startswith(f"layerdrop is {value!r}; expected a number ")


def test_a_family_that_is_not_sliced_either_is_told_with_it() -> None:
    sentence = refusal(method="full", layout=Layout(tp=2), model=shape("opt", layerdrop=0.1)) or ""
    told = "opt is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: fsdp, with "
    assert sentence.startswith(f"{told}train.disable_dropout: true; layerdrop 0.1 ")
    assert sentence.endswith("one process, or set train.disable_dropout: true")


def _job(rope: dict[str, Any] | None, model: str = "qwen3-8b") -> Job:
    return job_from_data({"model": model, **({} if rope is None else {"rope_scaling": rope})})


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "yarn"}, "rope_type yarn needs factor"),
        ({"rope_type": "longrope", "factor": 2.0}, "needs short_factor, long_factor, original_max_position_embeddings"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, "rope_type linear has no beta_fast; remove it"),
        ({"rope_type": "linear", "factor": 0.5}, "rope_scaling.factor is 0.5"),
        ({"rope_type": "llama3", **LLAMA3}, "high_freq_factor is not above low_freq_factor"),
        ({**YARN, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast is below beta_slow"),
        ({"rope_type": "ntk", "factor": 2.0}, "expected linear, dynamic, yarn, llama3 or longrope"),
    ],
)
def test_what_transformers_would_refuse_or_warn_of_is_refused(rope, said) -> None:
    must_refuse(JobError, said, _job, rope)


def test_a_shape_reaches_as_far_as_its_positions_are_stretched() -> None:
    def reaches(rope: dict[str, Any]) -> tuple[int, int | None]:
        shape = find_model("qwen3-8b", rope=_job(rope).rope_scaling)
        return shape.max_position_embeddings, shape.steady_positions

    assert reaches(YARN) == (131072, None)
    assert reaches({"type": "linear", "factor": 2.0}) == (81920, None)
    assert reaches({"rope_type": "dynamic", "factor": 2.0}) == (81920, 40960)
    stated = config_of("qwen3-8b", rope=_job(YARN).rope_scaling)
    assert stated["rope_parameters"].items() >= YARN.items()
    assert "rope_scaling" not in stated


@pytest.mark.parametrize(("model", "said"), [("gpt2", "has learned positions"), ("gemma-3-1b", "rotate in several")])
def test_models_that_it_does_not_fit_are_refused(model, said) -> None:
    must_refuse(UnsupportedError, said, find_model, model, rope=_job(YARN).rope_scaling)


def test_a_run_goes_on_with_the_same_value_alone() -> None:
    before, other = _job(YARN).to_json(), _job(YARN | {"factor": 2.0}).to_json()
    assert [*differences(before, other)] == [("rope_scaling.factor", 4.0, 2.0)]
    assert [*differences(before, _job(None).to_json())] == [("rope_scaling", before["rope_scaling"], None)]
    assert "rope_scaling" not in _job(None).to_json()
