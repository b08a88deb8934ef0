"""Shapes that are read off a build: equal to the catalogue's for every family of it, or refused in a sentence."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from typing import Any

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import ModelError
from shardwise.models.built.shape import built_shape
from shardwise.programs import model_shape
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.attention import UNTOLD
from shardwise.spec.support.splits import STAGED_FAMILIES, TENSOR_FAMILIES
from tests.dist.worlds import installed
from tests.marks import every_second
from tests.unit.catalog.small import small_config
from tests.unit.catalog.test_families import VARIANTS, name_of

#: Families of the catalogue that are not read off a build, and what is said of them.
OWN_ATTENTION = r"transformers does not build it with an attention that can be watched \("
NO_ATTENTION = "no softmax attention with heads was seen"
REFUSED = {
    "bloom": NO_ATTENTION,
    "mpt": NO_ATTENTION,
    "falcon": OWN_ATTENTION,
    "gpt_neo": OWN_ATTENTION,
    "gptj": OWN_ATTENTION,
    "opt": "the mask of attention is made without positions, which tell packed documents apart",
    **{kind: "mixtures of experts" for kind, family in FAMILIES.items() if family.experts is not None},
}
#: What a build says otherwise than the catalogue: granite's code divides logits by its scale, were it one.
OTHERWISE = {("granite", "plain_head")}

SPECIALS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
TIED = ("llama", "gemma3_text", "gpt2")
CASES = [small_config(kind, tie_word_embeddings=tied) for kind in FAMILIES for tied in {False, kind in TIED}]
CASES += [
    small_config(kind, **changes)
    for kind, variants in VARIANTS.items()
    for changes in variants
    if (kind, changes.get("sliding_window", 0)) != ("ministral", None)  # whose code has no forward without a window
]
READ = [config for config in CASES if config["model_type"] not in REFUSED]


def built(config: dict[str, Any]) -> ModelShape:
    if not installed([config["model_type"]]):
        pytest.skip(f"the installed transformers has no {config['model_type']}")
    return built_shape({**config, **SPECIALS}, file="config.json")


def comparable(shape: ModelShape) -> dict[str, Any]:
    """All that a shape says, whatever the order of parts; a window of all blocks is said in one way."""
    found = {field.name: getattr(shape, field.name) for field in fields(shape) if field.name != "built"}
    found |= {"matrices": frozenset(shape.matrices), "norms": frozenset(shape.norms)}
    if shape.windowed_layers == shape.num_layers:
        found["windowed_layers"] = None
    return found


@pytest.mark.parametrize("config", every_second(READ), ids=name_of)
def test_a_build_says_what_the_catalogue_says(config: dict[str, Any]) -> None:
    ours, theirs = comparable(shape_from_data(config, file="-")), comparable(built(config))
    different = {key for key in ours if ours[key] != theirs[key]}
    assert {(config["model_type"], key) for key in different} <= OTHERWISE, {k: (ours[k], theirs[k]) for k in different}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_understood_is_refused_in_a_sentence(kind: str) -> None:
    with pytest.raises(ModelError, match=REFUSED[kind]) as caught:
        built(small_config(kind))
    assert f"config.json: model_type '{kind}' has no row in the catalogue" in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in REFUSED])
def test_blocks_are_seen_to_split_where_that_is_proven(kind: str) -> None:
    # Seed-OSS drops out by default, which a stage might do again.
    found = built(small_config(kind)).built
    assert found is not None
    assert ("stages" in found) == (kind in STAGED_FAMILIES and kind != "seed_oss")
    # Of Cohere 2, attention and MLP stand side by side, which is not what is looked for.
    assert ("slices" in found) == (kind in TENSOR_FAMILIES and kind != "cohere2")
    assert ("documents" in found) == (kind not in UNTOLD)


def stranger(kind: str, **changes: Any) -> dict[str, Any]:
    """A small configuration of a family that the catalogue has no row for."""
    if not installed([kind]):
        pytest.skip(f"the installed transformers has no {kind}")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97}
    return {"model_type": kind, **sizes, "max_position_embeddings": 40, **SPECIALS, **changes}


MIXTURE = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = "of mixtures of experts this version trains mixtral, olmoe, qwen2_moe, qwen3_moe"
STRANGERS: list[tuple[str, dict[str, Any], str]] = [
    (
        "mamba",
        {},
        "no softmax attention with heads was seen, as transformers runs it by name, but .*convolution, exp, ",
    ),
    (
        "bert",
        {},
        "in its block bert.encoder.layer.0 attention is not seen to be causal: a token may see those after it",
    ),
    ("apertus", {}, "mlp.act_fn.alpha_n, .*mlp.act_fn.alpha_p.* belong to no matrix, norm or embedding"),
    ("diffllama", {}, "2 times softmax attention with heads was seen"),
    ("modernbert-decoder", {}, "lm_head.dense stands outside its blocks, and is not the head"),
    ("minicpm3", {}, "runs copy_, which is no part of attention or an MLP that is known"),
    ("granite_swa", {}, "attention is told s_aux, which is not known"),
    ("bart", {}, "BartDecoderWrapper has 0 lists of 3 blocks"),
    ("dots1", {}, OWN_ATTENTION + "TypeError: "),
    ("bitnet", {}, "what attention gives is not read by one matrix as it is"),
    ("jamba", MIXTURE, f"num_experts is 16: {EXPERTS}"),
    ("jamba", {**MIXTURE, "num_experts": 1}, "no softmax attention with heads was seen, .*convolution, exp"),
    ("doge", {**MIXTURE, "is_moe": True}, f"num_experts is 16384: {EXPERTS}"),
    ("doge", MIXTURE, "attention is not seen to be causal: a token may see those after it"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), STRANGERS)
def test_a_stranger_is_refused_by_what_was_found(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built_shape(stranger(kind, **changes), file="config.json")


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


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
    ("changes", "message"),
    [
        ({"hidden_size": "wide"}, "transformers cannot read it"),
        ({"hidden_act": "nothing"}, OWN_ATTENTION + "KeyError: "),
        ({"hidden_act": "mish"}, "runs mish, which is no part of attention or an MLP that is known"),
        ({"hidden_act": "sigmoid"}, "the MLP runs sigmoid, mul, which is no activation that is known"),
        ({"rope_parameters": {"rope_type": "nothing"}}, r"transformers (cannot read it|does not build it)"),
        ({"rope_parameters": DYNAMIC}, "its forward cannot be followed without numbers "),
    ],
)
def test_what_cannot_be_built_is_refused_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built({**small_config("llama"), **changes})
