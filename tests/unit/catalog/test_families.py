"""config.json -> ModelShape, held against models that transformers builds without memory."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families import FAMILIES

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "vocab_size": 97,
    "max_position_embeddings": 40,
}

VARIANTS = {
    "llama": [{"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": None, "head_dim": None}],
    "granite": [{"attention_bias": True, "mlp_bias": True}],
    "qwen3": [{"attention_bias": True}],
    "stablelm": [{"use_qkv_bias": True, "qk_layernorm": True}, {"use_parallel_residual": True}],
    "starcoder2": [{"use_bias": False}],
    "gpt_neox": [{"attention_bias": False}],
    "gpt2": [{"n_inner": 80}],
}


def small_config(kind, **changes):
    family = FAMILIES[kind]
    own = {family.keys.get(key, key): value for key, value in SMALL.items() if key in family.defaults}
    return {"model_type": kind, **own, **changes}


def build(config):
    keys = {key: value for key, value in config.items() if key != "model_type"}
    theirs = AutoConfig.for_model(config["model_type"], pad_token_id=0, bos_token_id=0, eos_token_id=0, **keys)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(theirs)
    model.tie_weights()
    return model


CASES = [small_config(kind, tie_word_embeddings=tied) for kind in FAMILIES for tied in (False, True)]
CASES += [small_config(kind, **changes) for kind, variants in VARIANTS.items() for changes in variants]


@pytest.mark.parametrize("config", CASES, ids=lambda c: f"{c['model_type']}-{len(str(c))}")
def test_every_parameter_is_counted_by_kind(config):
    model = build(config)
    shape = shape_from_data(config, file="config.json")
    embedding = model.get_input_embeddings().weight
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 3)
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    assert shape.layer_parameters == sum(p.numel() for p in blocks[1].parameters())
    assert shape.embedding_parameters == embedding.numel()
    assert shape.tied == (model.get_output_embeddings().weight is embedding)


@pytest.mark.parametrize("config", CASES, ids=lambda c: f"{c['model_type']}-{len(str(c))}")
def test_matrices_have_the_names_and_shapes_of_the_module_tree(config):
    blocks = next(m for m in build(config).modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 3)
    theirs = {n: tuple(p.shape) for n, p in blocks[0].named_parameters() if p.ndim == 2}
    ours = {
        f"{m.name}.weight": (m.columns, m.rows) if m.transposed else (m.rows, m.columns)
        for m in shape_from_data(config, file="config.json").matrices
    }
    assert ours == theirs


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind):
    family, theirs = FAMILIES[kind], AutoConfig.for_model(kind)
    computed = {"num_key_value_heads", "head_dim"}  # None here means computed, as there
    for key, value in family.defaults.items():
        name = family.keys.get(key, key)
        if (value is None and key in computed) or (key == "sliding_window" and family.optional_window):
            continue
        assert getattr(theirs, name) == value, f"{kind}.{name}"
