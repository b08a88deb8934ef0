"""Layouts and kernels that are refused, each with its sentence, by planner and trainer alike."""

from dataclasses import replace

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.models import find_model, read_model
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Attention, Execution
from shardwise.spec.support.attention import attention_refusal
from shardwise.spec.support.rows import Reason
from shardwise.spec.support.trained import execution_refusals, impossibilities, misfit, not_trained, refusal
from tests.unit.configs import config

LLAMA = read_model("tinyllama-1.1b")
FALCON = read_model("falcon-7b")
LLAMA_4 = read_model("llama-4-scout")
NEW = replace(LLAMA_4, family="new", built=(), unstaged="its blocks share weights")
#: 32 heads, 8 of keys and values, an MLP 14336 wide.
EIGHT_HEADS = replace(shape_from_data({"model_type": "mistral"}, file="config.json"), family="llama")
JOB = job_from_data({"model": "tinyllama-1.1b", "data": {"path": "rows.jsonl"}, "method": "full"})
SIXTEEN = "which needs a GPU with bfloat16 (Ampere or newer); use sdpa"
SECOND = f"flash_attention_2, {SIXTEEN}"
THIRD = "flash_attention_3, which needs a GPU like the H100; use "


def test_refusals_say_the_nearest_that_is_trained_and_carry_their_key() -> None:
    layout = Layout(pp=2, dp_shard=2, schedule="zero_bubble")
    assert "write zero_stage: 2, or schedule: 1f1b" in str(refusal(method="full", layout=layout, model=LLAMA))
    job = job_from_data({"model": "m", "method": "qlora", "lora": {"use_dora": True}, "data": {"packing": True}})
    execution = Execution(layout=Layout(tp=2), micro_batch_size=1, gradient_accumulation_steps=1, compile=True)
    found = [reason for reason in execution_refusals(job, execution, model=FALCON) if isinstance(reason, Reason)]
    assert {reason.row.key for reason in found} == {"method", "data.packing", "train.compile"}


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
    assert said.startswith("new is not cut in pipeline stages: its blocks share weights; the nearest layout")
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


def sliced(tp: int) -> Execution:
    return Execution(layout=Layout(tp=tp), micro_batch_size=1, gradient_accumulation_steps=1, precision="fp32")


@pytest.mark.parametrize(
    ("tp", "says"), [(16, "8 key-value heads"), (64, "32 attention heads"), (3, "14336 elements of the MLP's width")]
)
def test_a_tp_that_does_not_divide_is_refused(tp: int, says: str) -> None:
    assert not_trained(JOB, sliced(8), model=EIGHT_HEADS) == []
    reasons = not_trained(JOB, sliced(tp), model=EIGHT_HEADS)
    assert any(f"tp = {tp} does not divide the model's" in reason and says in reason for reason in reasons)


@pytest.mark.parametrize(("name", "heads"), [("gemma-4-31b", 4), ("gemma-4-12b", 1)])
def test_heads_of_keys_are_divided_in_every_kind_of_block(name: str, heads: int) -> None:
    said = refusal(method="full", layout=Layout(tp=2 * heads), model=find_model(name)) or ""
    assert f"does not divide the model's {heads} key-value heads" in said


@pytest.mark.parametrize(("family", "tp"), [("stablelm", 2), ("stablelm", 3), ("stablelm", 16), ("falcon", 2)])
def test_a_family_that_is_not_sliced_is_refused_as_such_whatever_its_heads(family: str, tp: int) -> None:
    other = replace(EIGHT_HEADS, family=family)
    said = f"{family} is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: "
    assert refusal(method="full", layout=Layout(tp=tp), model=other) == said + "fsdp"
    assert misfit(other, Layout(tp=tp)) == (None if tp == 2 else said + "fsdp")
    assert refusal(method="full", layout=Layout(tp=tp, pp=2), model=other) == said + "fsdp"


def test_what_does_not_come_out_even_is_told_at_once_with_what_to_write() -> None:
    narrow = replace(EIGHT_HEADS, family="qwen3", intermediate_size=62)
    why = "tp = 4 does not divide the model's 62 elements of the MLP's width"
    said = f"{why}; the largest tp that slices it evenly is 2"
    assert not_trained(JOB, sliced(4), model=narrow) == [f"{said}; or use fsdp"]
    assert refusal(method="full", layout=Layout(tp=4), model=narrow) == said
    assert misfit(EIGHT_HEADS, Layout(tp=16, pp=64), stated=True) == (
        "tp = 16 does not divide the model's 8 key-value heads; the largest tp that slices it evenly is 8; "
        "64 pipeline stages for 32 layers; use pp: 32 at most; or use fsdp"
    )
    assert refusal(method="qlora", layout=Layout(tp=8), model=EIGHT_HEADS) is None
    thin = tuple(replace(m, columns=m.columns // 32) for m in EIGHT_HEADS.matrices)
    narrow = replace(EIGHT_HEADS, matrices=thin)
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
    sizes = (config("llama", 40, width, 2, 4, 4, vocab=97) for width in (100, 64))
    narrow, whole = (shape_from_data(one, file="config.json") for one in sizes)
    lora, qlora = (job_from_data({"model": "m", "method": method}) for method in ("lora", "qlora"))
    assert not_trained(qlora, sliced(1), model=whole) == not_trained(lora, sliced(1), model=narrow) == []
    assert not_trained(qlora, sliced(1), model=narrow) == [
        "method qlora does not quantise mlp.gate_proj, a matrix of 100 x 40: it has no whole blocks of 64; use lora"
    ]
