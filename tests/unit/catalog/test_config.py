"""Configurations from strangers: an answer or a sentence, never a traceback."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog import stated
from shardwise.catalog.config import MAX_BYTES, parse_config, read_config_file, shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.catalog.stated import UnlistedFamilyError
from shardwise.errors import ModelError

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


def refused(data):
    with pytest.raises(ModelError) as caught:
        shape_from_data(data, file="x/config.json")
    assert str(caught.value).startswith("x/config.json")
    return caught.value


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"model_type": "mamba9"}, ("'mamba9'", "llama")),
        ({"model_type": "mamba", "trust_remote_code": True}, ("trust_remote_code names Python code",)),
        ({"model_type": "mamba", "quantization_config": {"bits": 4}}, ("quantised already",)),
        ({"model_type": "mamba", "num_hidden_layers": 100_000}, ("is 100000; expected a whole number from 1 to 1000",)),
        ({**LLAMA, "custom_pipelines": {"AutoModel": "evil.Model"}}, ("custom_pipelines",)),
        ({**LLAMA, "trust_remote_code": True}, ("trust_remote_code",)),
        ({**LLAMA, "quantization_config": {"bits": 4}}, ("quantization_config",)),
        ({**LLAMA, "num_key_value_heads": 3}, ("does not divide",)),
        ({"model_type": "qwen3_moe", "mlp_only_layers": ["0"]}, ("mlp_only_layers",)),
        ({"model_type": "deepseek_v2"}, ("num_experts_per_tok",)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, ("sliding_window_pattern",)),
        ({"model_type": "gemma3", "text_config": []}, ("text_config",)),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(data, words):
    message = str(refused(data))
    assert all(word in message for word in words)


def test_code_beside_a_known_family_is_passed_over_and_a_window_counts_where_it_is_used(tmp_path) -> None:
    code = {"auto_map": {"AutoConfig": "evil.Config"}}
    assert shape_from_data({**LLAMA, **code}, file="-") == shape_from_data(LLAMA, file="-")
    assert "auto_map" in str(refused({"model_type": "internlm2", **code}))
    assert shape_from_data({"model_type": "mistral"}, file="-").sliding_window == 4096
    assert shape_from_data({"model_type": "qwen2", "sliding_window": 128}, file="-").sliding_window is None
    assert shape_from_data({**LLAMA, "sliding_window": 128}, file="-").sliding_window is None
    with pytest.raises(ModelError, match="cannot be read"):
        read_config_file(tmp_path / "config.json")


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, None, 10**30, [64], {}])
def test_a_width_that_is_not_a_sane_whole_number_is_refused_by_key(value):
    assert "hidden_size" in str(refused({**LLAMA, "hidden_size": value}))


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"x" * (MAX_BYTES + 1), "larger"),
        (b"[1]", "object"),
        (b"{", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[" * 100_000, ""),
    ],
)
def test_what_is_not_a_configuration_is_named(raw, word):
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        parse_config(raw, file="config.json")
    assert word in str(caught.value)
    assert parse_config(b"{}".ljust(MAX_BYTES), file="config.json") == {}, "as large as it may be"


KEYS = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "hidden_act"),
    *("torch_dtype", "tie_word_embeddings", "intermediate_size", "sliding_window", "sliding_window_pattern"),
    *("layer_types", "num_experts", "n_routed_experts", "num_experts_per_tok", "first_k_dense_replace"),
    *("mlp_only_layers", "moe_layers", "q_lora_rank", "num_kv_heads", "new_decoder_architecture"),
    "word_embed_proj_dim",
)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "64", "silu", [1], {}]))


@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), values))
def test_any_configuration_gives_a_shape_or_a_sentence(kind, changes):
    try:
        shape = shape_from_data({"model_type": kind, **changes}, file="f")
    except ModelError as error:
        assert str(error).startswith("f: ")
    else:
        assert shape.num_parameters > 0
        json.dumps(shape.to_json())


@pytest.mark.parametrize("kind", ["mamba", "bert", "persimmon", "roberta-prelayernorm"])
def test_what_transformers_has_is_left_to_a_build(kind):
    error = refused({"model_type": kind, "hidden_size": 8})
    assert isinstance(error, UnlistedFamilyError)
    assert error.file == "x/config.json"
    assert str(error) == f"x/config.json: model_type '{kind}' has no row in the catalogue, and was not built"


@pytest.mark.parametrize("kind", ["llamax", "", "a" * 100, "../auto", "mam.a", "LlamaConfig", None, 3, ["mamba"]])
def test_what_transformers_has_not_is_not_known(kind):
    error = refused({"model_type": kind})
    assert not isinstance(error, UnlistedFamilyError)
    assert "is not known; known are arcee, bloom, " in str(error) or "has no model_type" in str(error)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_without_what_builds_it_is_said_what_to_install(absent, monkeypatch):
    find = stated.importlib.util.find_spec
    monkeypatch.setattr(stated.importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    assert (
        "model_type 'mamba' is not known; with `pip install shardwise[train]`, other families that transformers has "
        "are counted by building them; known are arcee, " in str(refused({"model_type": "mamba"}))
    )
