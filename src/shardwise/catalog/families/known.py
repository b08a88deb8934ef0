"""All known families of models, by the `model_type` of their config.json; and those like LLaMA."""

import json
from dataclasses import replace
from importlib import resources
from typing import Any

from shardwise.catalog.families import blocks
from shardwise.catalog.families.family import Family
from shardwise.catalog.families.layer_norm import LAYER_NORM
from shardwise.catalog.families.with_experts import EXPERTS

_COHERE_NORMS = blocks.hidden_norms("input_layernorm")
_UNEQUAL = "qkv_bias and bias differ, and its code has both or neither: write one value for the two"
_MISTRAL = Family(attention=blocks.UNBIASED_ATTENTION)

#: Rotary positions, gated MLPs, RMS norms, all blocks alike: model_type -> its rules.
LLAMA_LIKE: dict[str, Family] = {
    "llama": Family(),
    "granite": Family(),
    "internlm3": Family(misfit=lambda d: "" if d.flags["attention_bias"] == d.flags["mlp_bias"] else _UNEQUAL),
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "qwen2": Family(attention=blocks.QWEN2_ATTENTION, windowed=blocks.from_a_layer_on),
    "qwen3": Family(norms=blocks.with_head_norms(blocks.LLAMA_NORMS), windowed=blocks.from_a_layer_on),
    "arcee": Family(mlp=blocks.plain_mlp("mlp.up_proj", "mlp.down_proj", bias=blocks.flag("mlp_bias"))),
    "seed_oss": Family(
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.flag("attention_out_bias"))
    ),
    "exaone4": Family(attention=blocks.UNBIASED_ATTENTION, norms=blocks.with_head_norms(blocks.POST_NORMS)),
    "olmo": Family(
        norms=blocks.bare_norms("input_layernorm", "post_attention_layernorm"), final_norm=blocks.bare_norms("norm")
    ),
    "olmo2": Family(norms=blocks.with_whole_norms(blocks.POST_NORMS)),
    "olmo3": Family(norms=blocks.with_whole_norms(blocks.POST_NORMS)),
    "phi3": Family(attention=blocks.fused("self_attn", "qkv_proj", "o_proj", bias=blocks.never), mlp=blocks.phi3_mlp),
    "glm": Family(attention=blocks.GLM_ATTENTION, mlp=blocks.phi3_mlp),
    "glm4": Family(attention=blocks.GLM_ATTENTION, mlp=blocks.phi3_mlp, norms=blocks.GLM4_NORMS),
    "gemma": Family(),
    # Its attention is written out whether scores are capped or not.
    "gemma2": Family(norms=blocks.GEMMA2_NORMS),
    # Its attention does not read attn_logit_softcapping.
    "gemma3_text": Family(norms=blocks.with_head_norms(blocks.GEMMA2_NORMS)),
    "cohere": Family(
        mlp=blocks.beside_attention(blocks.gated_mlp),
        norms=blocks.where(blocks.flag("use_qk_norm"), blocks.with_whole_norms(_COHERE_NORMS), _COHERE_NORMS),
        parallel=blocks.always,
    ),
    "cohere2": Family(mlp=blocks.beside_attention(blocks.gated_mlp), norms=_COHERE_NORMS, parallel=blocks.always),
    "ernie4_5": Family(),
    "helium": Family(
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.never),
        even_heads=blocks.always,
    ),
    "hunyuan_v1_dense": Family(
        norms=blocks.with_head_norms(blocks.LLAMA_NORMS, query="query_layernorm", key="key_layernorm")
    ),
    "smollm3": Family(windowed=blocks.without_rotation),
}

_FOLDER = resources.files("shardwise.catalog") / "families"
_CONFIGURATIONS: dict[str, dict[str, Any]] = json.loads((_FOLDER / "configurations.json").read_text(encoding="utf-8"))
_RULES = {**LLAMA_LIKE, **LAYER_NORM, **EXPERTS}
#: model_type -> its rules, with how its config.json is read.
FAMILIES = {kind: replace(rules, **_CONFIGURATIONS[kind]) for kind, rules in _RULES.items()}
#: model_type -> types of JSON -> the keys that transformers' class of it takes in these alone.
TYPES: dict[str, dict[str, list[str]]] = json.loads((_FOLDER / "types.json").read_text(encoding="utf-8"))
#: model_type of a model of text and images that is read without a build -> the `model_type` of its
#: language model, where its `text_config` states none, and the names of its backbone and head.
TEXT_PARTS = {
    "gemma3": ("gemma3_text", "model.language_model", "lm_head"),
    "llama4": ("llama4_text", "language_model.model", "language_model.lm_head"),
}
