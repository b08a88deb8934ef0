"""What is refused of layouts, kernels and rows, each with its sentence."""

from dataclasses import replace
from typing import Any

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.models import config_of, find_model, read_model
from shardwise.errors import JobError, ModelError, UnsupportedError
from shardwise.launch.run_folder import first_difference
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Execution
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.attention import attention_refusal
from shardwise.spec.support.rows import Reason
from shardwise.spec.support.trained import (
    execution_refusals,
    impossibilities,
    misfit,
    not_trained,
    refusal,
    refused_everywhere,
)
from tests.refusals import said_by

LLAMA = read_model("tinyllama-1.1b")
FALCON = read_model("falcon-7b")
LLAMA_4 = read_model("llama-4-scout")
NEW = replace(LLAMA_4, family="new")
SIXTEEN = "which needs a GPU with bfloat16 (Ampere or newer); use sdpa"
SECOND = f"flash_attention_2, {SIXTEEN}"
THIRD = "flash_attention_3, which needs a GPU like the H100; use "
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


def test_refusals_say_the_nearest_that_is_trained_and_carry_their_key() -> None:
    layout = Layout(pp=2, dp_shard=2, schedule="zero_bubble")
    assert "write zero_stage: 2, or schedule: 1f1b" in str(refusal(method="full", layout=layout, model=LLAMA))
    job = job_from_data({"model": "m", "method": "qlora", "lora": {"use_dora": True}, "data": {"packing": True}})
    execution = Execution(layout=Layout(tp=2), micro_batch_size=1, gradient_accumulation_steps=1, compile=True)
    found = [reason for reason in execution_refusals(job, execution, model=FALCON) if isinstance(reason, Reason)]
    assert {reason.row.key for reason in found} == {"method", "data.packing", "train.compile"}
    whole = replace(LLAMA, built=(), unstaged="its blocks share weights", unsliced="transformers has no plan of it")
    for layout, why in ((Layout(pp=2), whole.unstaged), (Layout(tp=2), whole.unsliced)):
        said = refusal(method="full", layout=layout, model=whole) or ""
        assert said.endswith(f": {why}; the nearest layout that trains it: fsdp")


def reasons(layout: Layout, **options: str) -> list[str]:
    job = job_from_data({"model": "tinyllama-1.1b", "data": {"max_length": 64, "num_rows": 8}})
    execution = Execution(layout=layout, micro_batch_size=1, gradient_accumulation_steps=1, **options)  # type: ignore[arg-type]
    return execution_refusals(job, execution, model=LLAMA)


CUT, WITH = Layout(pp=2, schedule="zero_bubble"), "is not trained with gradient_checkpointing"
HANDED = {"gradient_checkpointing": "selective_offloaded"}
REASONS = [
    (Layout(pp=24), {}, ["24 pipeline stages for 22 layers; use pp: 22 at most"]),
    (Layout(pp=16, schedule="interleaved"), {}, ["32 pipeline stages for 22 layers; use pp: 11 at most"]),
    *(
        (CUT, {"gradient_checkpointing": kind}, [f"schedule zero_bubble {WITH}: {kind}; use none, or schedule: 1f1b"])
        for kind in ("selective", "full", "offloaded", "selective_offloaded")
    ),
    (CUT, {"gradient_checkpointing": "none"}, []),
    (Layout(), HANDED, ["gradient_checkpointing selective_offloaded needs compile: true; use offloaded"]),
    (Layout(), {**HANDED, "compile": True}, []),
    (Layout(cp=2), {}, []),
]


@pytest.mark.parametrize(("layout", "options", "said"), REASONS)
def test_what_an_execution_cannot_be_is_said_with_what_it_can(layout, options, said) -> None:
    assert reasons(layout, **options) == said


def test_streamed_parameters_do_not_go_with_a_cut_backward() -> None:
    job = job_from_data({"model": "m", "data": {"path": "d"}})
    whole = Layout(pp=2, dp_shard=2, schedule="zero_bubble", zero_stage=2, reshard_after_forward=False)
    for layout in (whole, Layout(pp=2, dp_shard=2, schedule="1f1b")):
        assert refusal(method="lora", layout=layout, model=LLAMA) is None
        streamed = Execution(layout=layout, micro_batch_size=1, gradient_accumulation_steps=2, offload="parameters")
        said = impossibilities(job, streamed)
        assert [one.endswith("use schedule: 1f1b, or offload: optimizer") for one in said] == [True] * (layout == whole)


def test_a_family_that_is_not_cut_in_stages_is_refused_by_name_whatever_its_blocks_and_schedule() -> None:
    said = refusal(method="full", layout=Layout(pp=2), model=NEW) or ""
    assert said.startswith("new is not cut in pipeline stages by this version; the nearest layout")
    assert refusal(method="full", layout=Layout(pp=2), model=LLAMA_4) is None
    assert refusal(method="full", layout=Layout(dp_shard=2), model=NEW) is None
    assert str(misfit(NEW, Layout(pp=64))).startswith(said[:50])
    sharded = Layout(pp=2, dp_shard=2, schedule="zero_bubble")
    assert str(refusal(method="full", layout=sharded, model=NEW)).startswith(said[:50])


def test_parts_of_sequences_are_refused_to_families_kernels_and_recompute_without_them() -> None:
    for layout in (Layout(cp=2), Layout(dp_shard=2, cp=2)):
        assert refusal(method="full", layout=layout, model=LLAMA) is None
        why = "falcon is not trained on parts of sequences (cp) by this version"
        said = f"{why}; the nearest layout that trains it: fsdp"
        assert refusal(method="full", layout=layout, model=FALCON) == said
    capped = replace(LLAMA, built=("stages",), attention_softcap=True)
    assert "is not trained on parts of sequences" in str(refusal(method="full", layout=Layout(cp=2), model=capped))
    hybrid = replace(LLAMA, family="falcon_h1", mixes_documents=True)  # its states go from token to token
    assert "falcon_h1 is not trained on parts" in str(refusal(method="full", layout=Layout(cp=2), model=hybrid))
    said = "attn_implementation varlen is not trained under fsdp x cp; use sdpa"
    assert said in reasons(Layout(dp_shard=2, cp=2), attn_implementation="varlen")
    selective = reasons(Layout(cp=2), compile=True, gradient_checkpointing="selective")  # type: ignore[arg-type]
    assert "gradient_checkpointing selective is not trained with compile under cp; use full or none" in selective


@pytest.fixture
def job() -> Job:
    return job_from_data({"model": "tinyllama-1.1b", "data": {"path": "rows.jsonl"}, "method": "full"})


@pytest.fixture
def model() -> ModelShape:
    """32 heads, 8 of keys and values, an MLP 14336 wide."""
    return replace(shape_from_data({"model_type": "mistral"}, file="config.json"), family="llama")


def sliced(tp: int) -> Execution:
    return Execution(layout=Layout(tp=tp), micro_batch_size=1, gradient_accumulation_steps=1, precision="fp32")


@pytest.mark.parametrize(
    ("tp", "says"), [(16, "8 key-value heads"), (64, "32 attention heads"), (3, "14336 elements of the MLP's width")]
)
def test_a_tp_that_does_not_divide_is_refused(tp: int, says: str, job: Job, model: ModelShape) -> None:
    assert not_trained(job, sliced(8), model=model) == []
    reasons = not_trained(job, sliced(tp), model=model)
    assert any(f"tp = {tp} does not divide the model's" in reason and says in reason for reason in reasons)


@pytest.mark.parametrize("tp", [2, 3, 16])
def test_a_family_that_is_not_sliced_is_refused_as_such_whatever_its_heads(tp: int, model: ModelShape) -> None:
    other = replace(model, family="phi3")
    said = "phi3 is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: "
    assert refusal(method="full", layout=Layout(tp=tp), model=other) == said + "fsdp"
    assert misfit(other, Layout(tp=tp)) == (None if tp == 2 else said + "fsdp")
    assert refusal(method="full", layout=Layout(tp=tp, pp=2), model=other) == said + "fsdp"


def test_what_does_not_come_out_even_is_told_at_once_with_what_to_write(job: Job, model: ModelShape) -> None:
    narrow = replace(model, family="qwen3", intermediate_size=62)
    why = "tp = 4 does not divide the model's 62 elements of the MLP's width"
    said = f"{why}; the largest tp that slices it evenly is 2"
    assert not_trained(job, sliced(4), model=narrow) == [f"{said}; or use fsdp"]
    assert refusal(method="full", layout=Layout(tp=4), model=narrow) == said
    assert misfit(model, Layout(tp=16, pp=64), stated=True) == (
        "tp = 16 does not divide the model's 8 key-value heads; the largest tp that slices it evenly is 8; "
        "64 pipeline stages for 32 layers; use pp: 32 at most; or use fsdp"
    )
    assert refusal(method="qlora", layout=Layout(tp=8), model=model) is None
    narrow = replace(model, matrices=tuple(replace(m, columns=m.columns // 32) for m in model.matrices))
    assert refusal(method="lora", layout=Layout(tp=4), model=narrow) is None
    assert refusal(method="qlora", layout=Layout(tp=4), model=narrow, stated=True) == (
        "tp = 4 cuts blocks of 64 quantised elements in rows of self_attn.o_proj; use fsdp"
    )


@pytest.mark.parametrize(
    ("name", "attention", "said"),
    [
        *((name, "flash_attention_2", SECOND) for name in ("T4", "V100-16GB", "RTX-2080-Ti", "Quadro-RTX-8000")),
        ("T4", "varlen", f"varlen, {SIXTEEN}"),
        ("T4", "flash_attention_3", f"{THIRD}sdpa"),
        ("A100-40GB", "flash_attention_3", f"{THIRD}flash_attention_2 or sdpa"),
        ("B200", "flash_attention_3", f"{THIRD}flash_attention_2 or sdpa"),
        *((name, "sdpa", None) for name in ("T4", "H100-SXM")),
        *((name, "flash_attention_3", None) for name in ("H100-SXM", "H200", "GH200")),
        *(("H200", attention, None) for attention in ("eager", "flex_attention", "flash_attention_2")),
    ],
)
def test_a_kernel_is_refused_where_a_gpu_has_none(name: str, attention: Attention, said: str | None) -> None:
    assert attention_refusal(attention, find_gpu(name).gpu) == (said and f"train.attn_implementation is {said}")


def test_matrices_without_whole_blocks_are_not_quantised() -> None:
    """Two products of widths are whole blocks for one MLP width and not for another."""
    config = {"model_type": "llama", "hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 4}
    narrow, whole = (
        shape_from_data({**config, "intermediate_size": width, "num_hidden_layers": 2}, file="config.json")
        for width in (100, 64)
    )
    job = job_from_data({"model": "m", "method": "qlora"})
    assert refused_everywhere(job, whole) == []
    assert refused_everywhere(job, narrow) == [
        "method qlora does not quantise mlp.gate_proj, a matrix of 100 x 40: it has no whole blocks of 64; use lora"
    ]
    assert refused_everywhere(job_from_data({"model": "m", "method": "lora"}), narrow) == []


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
def test_kernels_that_are_told_of_documents_say_what_they_lack(model, kernel, why) -> None:
    def found(**data: Any) -> list[str]:
        job = Job.model_validate({"model": "m", "data": {"max_length": 64, **data}})
        return impossibilities(job, replace(execution(), attn_implementation=kernel), model=model)

    start = f"attn_implementation {kernel} "
    said = [sentence.removeprefix(start)[: len(why or "")] for sentence in found(packing=True)]
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
    assert said in said_by(JobError, _job, rope)


def test_a_shape_reaches_as_far_as_its_positions_are_stretched() -> None:
    def reaches(rope: dict[str, Any]) -> tuple[int, int | None]:
        shape = find_model("qwen3-8b", rope=_job(rope).rope_scaling)
        return shape.max_position_embeddings, shape.steady_positions

    assert reaches(YARN) == (131072, None)
    assert reaches({"type": "linear", "factor": 2.0}) == (81920, None)
    assert reaches({"rope_type": "dynamic", "factor": 2.0}) == (81920, 40960)
    stated = config_of("qwen3-8b", rope=_job(YARN).rope_scaling)
    assert stated["rope_parameters"].items() >= YARN.items() and "rope_scaling" not in stated


@pytest.mark.parametrize(("model", "said"), [("gpt2", "has learned positions"), ("gemma-3-1b", "rotate in several")])
def test_models_that_it_does_not_fit_are_refused(model, said) -> None:
    with pytest.raises(UnsupportedError, match=said):
        find_model(model, rope=_job(YARN).rope_scaling)


def test_a_run_goes_on_with_the_same_value_alone() -> None:
    before, other = _job(YARN).to_json(), _job(YARN | {"factor": 2.0}).to_json()
    assert first_difference(before, other) == ("rope_scaling.factor", 4.0, 2.0)
    assert first_difference(before, _job(None).to_json()) == ("rope_scaling", before["rope_scaling"], None)
    assert "rope_scaling" not in _job(None).to_json()
