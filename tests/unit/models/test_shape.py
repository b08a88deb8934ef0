"""Shapes read off a build: equal to the catalogue's for every family of it, or refused."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import ModelError, UnsupportedError
from shardwise.methods.lora import add_adapters
from shardwise.models.built.generic import bare_experts_of
from shardwise.models.built.shape import built_shape, shape_of
from shardwise.models.built.splits import _form
from shardwise.models.stage import Passed
from shardwise.programs import model_shape
from shardwise.spec.model.shape import Matrix, ModelShape
from shardwise.spec.support.attention import UNTOLD
from shardwise.spec.support.splits import TENSOR_FAMILIES, heads, parts_of_stream
from shardwise.spec.support.trained import refusal, refused_everywhere
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed, skip_without
from tests.refusals import must_refuse
from tests.unit.catalog.small import build, small_config, their_config
from tests.unit.plan.asking import Layout, job, shape_from_data, take_inventory

KINDS = installed(tuple(FAMILIES))
#: Families whose attention transformers does not run by name, or masks without positions.
OWN_ATTENTION = ("bloom", "falcon", "gpt_neo", "gptj", "mpt", "opt")
SPECIALS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}


def built(config: dict[str, Any]) -> ModelShape:
    return built_shape({**config, **SPECIALS}, file="config.json")


def of_counts(matrix: Matrix) -> tuple[object, ...]:
    """What of a matrix is known without its role, by a name that a router and its weight share."""
    dims = (matrix.rows, matrix.columns, matrix.count, matrix.bias, matrix.transposed)
    return (matrix.name, *dims, matrix.stacked, matrix.adaptable, matrix.active, matrix.runs_all)


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_is_counted_as_the_catalogue_counts_it(kind: str) -> None:
    ours, theirs = shape_from_data(small_config(kind), file="-"), built(small_config(kind))
    assert theirs.num_parameters == ours.num_parameters
    assert [k.num_layers for k in theirs.kinds] == [k.num_layers for k in ours.kinds]
    for one, other in zip(theirs.kinds, ours.kinds, strict=True):
        assert {of_counts(m) for m in one.matrices} == {of_counts(m) for m in other.matrices}
    # What divides logits by one is no plain head to a build, nor what goes round its backbone.
    assert theirs.plain_head in (ours.plain_head, False)
    assert theirs.windowed_layers in (ours.windowed_layers, None if ours.windowed_layers == ours.num_layers else 0)
    for part in ("tied", "hidden_size", "num_attention_heads", "bare_experts"):
        assert getattr(theirs, part) == getattr(ours, part), part
    assert theirs.names.embedding == ours.names.embedding and theirs.names.blocks == ours.names.blocks


@pytest.mark.parametrize("kind", [k for k in KINDS if FAMILIES[k].experts is None and k not in OWN_ATTENTION])
def test_blocks_are_seen_to_split_where_that_is_proven(kind: str) -> None:
    found = built(small_config(kind)).built
    assert "stages" in found
    # The rest has matrices that every rank computes whole, or an embedding that is scaled.
    assert "slices" in found or kind not in TENSOR_FAMILIES or kind.startswith("gemma")
    assert ("documents" in found) == (kind not in UNTOLD)


@pytest.mark.parametrize(
    ("kind", "stages", "slices"),
    [
        ("zamba", "its blocks share weights", "no tensor parallel plan"),
        ("jetmoe", "its forward could not be followed without numbers", "no tensor parallel plan"),
    ],
)
def test_why_a_build_stays_whole_is_said(kind: str, stages: str, slices: str) -> None:
    skip_without(kind)
    found = built(json.loads(tiny_config(kind).to_json_string(use_diff=False)))
    assert found.unstaged.startswith(stages) and slices in found.unsliced
    for layout, why in ((Layout(pp=2), found.unstaged), (Layout(tp=2), found.unsliced)):
        said = refusal(method="full", layout=layout, model=found) or ""
        assert said.endswith(f": {why}; the nearest layout that trains it: fsdp")


def test_slices_of_blocks_that_read_more_than_the_stream_have_a_single_head_of_keys_whole() -> None:
    for keys, more in ((1, {}), (2, {"key-value heads": 2})):
        config = tiny_config("gemma4_text", num_key_value_heads=keys)
        found = built(json.loads(config.to_json_string(use_diff=False)))
        assert "whole_stream" in (found.built or ()) and parts_of_stream(found, 2) == 1
        assert heads(found) == {"attention heads": 4, **more}
        attention = {m.name.rpartition(".")[2]: m.sliced_by for m in found.matrices if "self_attn" in m.name}
        cut = None if keys == 1 else "rows"
        assert attention == {"q_proj": "rows", "k_proj": cut, "v_proj": cut, "o_proj": "columns"}


@pytest.mark.parametrize(
    ("family", "changes", "layout", "why"),
    [
        (
            "longcat_flash",
            {},
            Layout(dp_shard=2, ep=2),
            "ep deals no experts whose matrices differ in number, as those",
        ),
        (
            "codegen",
            {"n_head": 8},
            Layout(tp=8),
            "8 does not divide the model's 4 groups of heads; the largest tp that slices",
        ),
        ("gemma3n_text", {"num_key_value_heads": 1}, Layout(tp=3), "3 does not divide the model's 4 attention heads"),
    ],
)
def test_what_ranks_of_a_build_cannot_divide_is_refused(
    family: str, changes: dict[str, int], layout: Layout, why: str
) -> None:
    found = built(json.loads(tiny_config(family, **changes).to_json_string(use_diff=False)))
    assert why in (refusal(method="full", layout=layout, model=found) or "")


def test_what_stages_send_beside_the_stream_is_counted() -> None:
    found = built(json.loads(tiny_config("gemma3n_text").to_json_string(use_diff=False)))
    streams, inputs, stored = 4 * 64, 64, 2 * 2 * 16  # keys and values of two heads, of the first two blocks
    assert found.passed == tuple(streams + (4 - at) * inputs + (0, 1, 2, 1)[at] * stored for at in range(4))
    assert found.kind_of_block == (0, 0, 1, 1)
    said = refusal(method="full", layout=Layout(pp=2, schedule="zero_bubble"), model=found)
    used = "schedule zero_bubble is not trained for gemma3n_text, whose blocks use a weight twice"
    assert said == f"{used}; use schedule: 1f1b"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_numbers_pass_between_stages_as_they_are(dtype: torch.dtype) -> None:
    tokens, chosen = torch.tensor([[0, 65535, 2**31 - 1]]), torch.arange(9, dtype=torch.int32).view(1, 3, 3)
    for sizes, sent in (((), tokens), ((16,), chosen)):
        passed = Passed(sizes=sizes, order=(0, 1, 2), read=(), whole=True)
        folded = passed.fold(sent, dtype)
        assert folded.dtype == dtype and folded.shape[2] == passed.width
        assert torch.equal(passed.unfold(torch.cat([folded[..., :0], folded], dim=2)), sent.long())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((11, 13), torch.bool), ((11, 13, 13), torch.int64), ((11, 13, 4, 2), torch.int32), ((11, 13), torch.float32)],
)
def test_other_forms_are_not_sent(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match="beside the residual stream, in a form that stages do not send"):
        _form(torch.empty(shape, dtype=dtype, device="meta"), (), chosen=0)


@pytest.mark.parametrize("kind", installed(("dbrx", "longcat_flash")))
def test_experts_that_read_their_routes_are_stood_in_for(kind: str) -> None:
    assert "stages" in (built(json.loads(tiny_config(kind).to_json_string(use_diff=False))).built or ())


def stranger(kind: str, **changes: Any) -> dict[str, Any]:
    skip_without(kind)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97}
    return {"model_type": kind, **sizes, "max_position_embeddings": 40, **SPECIALS, **changes}


MIXTURE = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16}
GATED_DELTA = {**MIXTURE, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
ZERO_EXPERTS = {"n_routed_experts": 4, "zero_expert_num": 4, "moe_topk": 2, "num_layers": 2, "num_hidden_layers": 2}
ZERO_EXPERTS |= dict.fromkeys(("expert_ffn_hidden_size", "qk_nope_head_dim", "qk_rope_head_dim", "head_dim"), 16)
ZERO_EXPERTS["ffn_hidden_size"] = 32
#: A family with something in it that no rule knows, and how many kinds of blocks it has.
STRANGERS: list[tuple[str, dict[str, Any], int]] = [
    ("mamba", {}, 1),
    ("bamba", {**MIXTURE, "mamba_n_heads": 8}, 1),
    ("apertus", {}, 1),
    ("diffllama", {}, 1),
    ("modernbert-decoder", {}, 2),
    ("minicpm3", {"num_key_value_heads": 4}, 1),
    ("granite_swa", {}, 1),
    ("dots1", {**MIXTURE, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}, 1),
    ("bitnet", {"num_key_value_heads": 4}, 1),
    ("jamba", MIXTURE, 2),
    ("qwen3_next", {**GATED_DELTA, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 4}, 2),
    ("gemma3n_text", {**MIXTURE, "vocab_size_per_layer_input": 97, "num_kv_shared_layers": 0}, 1),
    ("gemma4_text", {**MIXTURE, "vocab_size_per_layer_input": 97, "num_kv_shared_layers": 0}, 2),
    (
        "gemma4_text",
        {**MIXTURE, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
        2,
    ),
    ("rwkv", {}, 2),
    ("openai-gpt", {"n_embd": 64, "n_layer": 3, "n_head": 4}, 1),
    ("longcat_flash", {**ZERO_EXPERTS, **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "v_head_dim"), 16)}, 1),
]


@pytest.mark.filterwarnings("ignore")  # PEFT warns of matrices that are stored the other way round
@pytest.mark.parametrize(("kind", "changes", "kinds"), STRANGERS)
def test_a_stranger_is_counted_exactly(kind: str, changes: dict[str, Any], kinds: int) -> None:
    config = stranger(kind, **changes)
    found = built_shape(json.loads(their_config(config).to_json_string(use_diff=False)), file="config.json")
    model = build(config)
    assert found.num_parameters == sum(p.numel() for p in model.parameters())
    assert len(found.kinds) == kinds
    # PEFT refuses the last matrix of families of Mamba alone.
    lora = job(method="lora", lora={"r": 3, "target_modules": ["in_proj"] if kind == "mamba" else "all-linear"})
    adapted = add_adapters(model, lora.adapters, base_model="base")
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert take_inventory(lora, found).trained_elements == trained


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bert", "it is an encoder, in which a token sees those after it"),
        ("bart", "it is the decoder of an encoder-decoder, which reads what an encoder made"),
        ("trocr", "it is the decoder of an encoder-decoder"),
        ("musicgen", "it is the decoder of an encoder-decoder"),
        ("hrm_text", "lists of modules L_module.layers, H_module.layers, none of which alone is its decoder's blocks"),
        ("phi4_multimodal", "it is a model of more than text, in which transformers has no language model"),
        ("gemma4_assistant", "it drafts tokens for another model, whose hidden states, keys and values it reads"),
        ("cpmant", r"its head is .* and its embedding .*, and heads of another size are not trained"),
        ("doge", "its code chooses the keys of a token among those after it too, so it is not causal"),
    ],
)
def test_what_is_no_decoder_is_refused_as_what_it_is(kind: str, message: str) -> None:
    must_refuse(ModelError, message, built_shape, stranger(kind), file="config.json")


def test_what_a_configuration_calls_otherwise_is_read_under_the_name_that_its_class_knows() -> None:
    config = {"vocab_size": 97, "d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96, **SPECIALS}
    assert built_shape({"model_type": "xglm", **config}, file="config.json").num_attention_heads == 4


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: dict[str, Any]) -> dict[str, Any]:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"config": config, "file": "f"})))
    model_shape.main()
    return json.loads(capsys.readouterr().out)


def test_the_program_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(monkeypatch, capsys, {**small_config("llama"), **SPECIALS})
    shape = built(small_config("llama"))
    assert shape.built == ("stages", "slices", "documents")
    assert ModelShape.from_json(answer["shape"]) == shape
    (reason,) = ask(monkeypatch, capsys, {**small_config("llama"), "quantization_config": {"bits": 4}})["refused"]
    assert reason.startswith("quantization_config says the weights are quantised already")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"hidden_size": "wide"}, "transformers cannot read it"),
        ("llama", {"hidden_act": "nothing"}, r"transformers does not build it \(KeyError: "),
        ("llama", {"rope_parameters": {"rope_type": "nothing"}}, r"transformers (cannot read it|does not build it)"),
        ("gpt2", {"vocab_size": 0}, r"its head is \(0, 64\) and its embedding \(0, 64\), and heads of another size"),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(kind: str, changes: dict[str, Any], message: str) -> None:
    must_refuse(ModelError, message, built, {**small_config(kind), **changes})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"num_key_value_heads": 3}, "ValueError: queries of 4 heads of width 24 meet keys of 3 heads"),
        ("deepseek_v3", {"num_local_experts": 5, "n_group": 2}, "RuntimeError: shape '[-1, 2, 2]' is invalid for"),
        ("mistral", {"head_dim": 3}, "RuntimeError: Attempting to broadcast a dim"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "RuntimeError: k not in range for dimension"),
    ],
)
def test_what_cannot_be_run_is_counted_and_not_trained(kind: str, changes: dict[str, Any], message: str) -> None:
    shape = built({**small_config(kind), **changes})
    assert shape.num_parameters == sum(p.numel() for p in build({**small_config(kind), **changes}).parameters())
    assert shape.untrained.startswith(f"its forward raises {message}")
    assert refused_everywhere(job(), shape)[0] == shape.untrained


UNMET: list[tuple[str, dict[str, Any], str]] = [
    ("zaya", {"cca_time1": 0}, "conv_qk_grouped.weight has no elements, as a number in its configuration is 0"),
    ("qwen4_exp_text", {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
    ("gemma4_text", {"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input is 7; expected the vocabulary's"),
    ("beam", {"sliding_window": 0}, "a token may see those after it, or none (window 0)"),
    ("llama", {"hidden_act": "quick_gelu"}, ""),
]


@pytest.mark.parametrize(("kind", "changes", "message"), UNMET)
def test_what_is_met_with_numbers_is_said_too(tmp_path: Path, kind: str, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**tiny_config(kind).to_dict(), **changes}, default=str))
    try:
        said = shape_of(str(tmp_path)).untrained
    except ModelError as error:
        said = str(error)
    assert message in said and bool(message) == bool(said)


def test_names_of_experts_are_those_of_pefts_tables() -> None:
    tables: Any = pytest.importorskip("peft.utils.transformers_weight_conversion")
    theirs, known = tables._MODEL_TO_CONVERSION_PATTERN, tables._MOE_TARGET_MODULE_MAPPING
    stated = {kind: name if name in known else None for kind, name in theirs.items()}
    assert {kind: bare_experts_of(kind) for kind in stated} == stated
    assert bare_experts_of("qwen3_5_text") is None
