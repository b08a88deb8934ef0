"""LLaMA and its kin: rotary, gated, normalised by root mean square, every block alike."""

from __future__ import annotations

from typing import Any

from shardwise.catalog.attention import (
    GLM_ATTENTION,
    LLAMA_ATTENTION,
    QWEN2_ATTENTION,
    UNBIASED_ATTENTION,
    fused,
    separate,
)
from shardwise.catalog.blocks import (
    GEMMA2_NORMS,
    GLM4_NORMS,
    LLAMA_NORMS,
    POST_NORMS,
    always,
    bare_norms,
    beside_attention,
    flag,
    gated_mlp,
    hidden_norms,
    never,
    phi3_mlp,
    plain_mlp,
    where,
    with_head_norms,
    with_whole_norms,
)
from shardwise.catalog.family import COMMON, LLAMA, LLAMA_BIASES, Family
from shardwise.catalog.windows import from_a_layer_on

_QWEN: dict[str, Any] = {
    **COMMON,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA: dict[str, Any] = {
    **COMMON,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
}
_GEMMA2: dict[str, Any] = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
}
_GLM: dict[str, Any] = {
    **LLAMA,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "attention_bias": True,
}
_OLMO: dict[str, Any] = {**LLAMA, "vocab_size": 50304}
_COHERE: dict[str, Any] = {
    **COMMON,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "logit_scale": 0.0625,
}
_COHERE_NORMS = hidden_norms("input_layernorm")

MISTRAL = Family(
    defaults={
        **COMMON,
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    attention=UNBIASED_ATTENTION,
    mlp=gated_mlp,
    norms=LLAMA_NORMS,
)

#: model_type -> its rules.
LLAMA_KIN: dict[str, Family] = {
    "llama": Family(defaults=LLAMA_BIASES, attention=LLAMA_ATTENTION, mlp=gated_mlp, norms=LLAMA_NORMS),
    "granite": Family(
        defaults={**LLAMA_BIASES, "logits_scaling": 1.0}, attention=LLAMA_ATTENTION, mlp=gated_mlp, norms=LLAMA_NORMS
    ),
    "internlm3": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 128512,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 32768,
        },
        keys={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        fallbacks=("attention_bias", "mlp_bias"),
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
    ),
    "mistral": MISTRAL,
    "qwen2": Family(
        defaults=_QWEN,
        optional=("max_window_layers",),
        attention=QWEN2_ATTENTION,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        optional_window=True,
        windowed=from_a_layer_on,
    ),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128, "attention_bias": False},
        optional=("max_window_layers",),
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=with_head_norms(LLAMA_NORMS),
        optional_window=True,
        windowed=from_a_layer_on,
    ),
    "arcee": Family(
        defaults={
            **LLAMA_BIASES,
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "max_position_embeddings": 4096,
            "hidden_act": "relu2",
        },
        attention=LLAMA_ATTENTION,
        mlp=plain_mlp("mlp.up_proj", "mlp.down_proj", bias=flag("mlp_bias")),
        norms=LLAMA_NORMS,
        mlp_kind="plain",
    ),
    "seed_oss": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 155136,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
            "attention_out_bias": False,
            "attention_dropout": 0.1,
            "residual_dropout": 0.1,
        },
        attention=separate(bias=flag("attention_bias"), output_bias=flag("attention_out_bias")),
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
    ),
    "exaone4": Family(
        defaults={
            **COMMON,
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "sliding_window": 4096,
        },
        attention=UNBIASED_ATTENTION,
        mlp=gated_mlp,
        norms=with_head_norms(POST_NORMS),
        whole_every=4,
        pattern_key="sliding_window_pattern",
    ),
    "olmo": Family(
        defaults=_OLMO,
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=bare_norms("input_layernorm", "post_attention_layernorm"),
        norm_kind="layer",
        final_norm=bare_norms("norm"),
    ),
    "olmo2": Family(
        defaults=_OLMO,
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=with_whole_norms(POST_NORMS),
        norm_kind="gemma",
    ),
    "olmo3": Family(
        defaults={**_OLMO, "sliding_window": 4096},
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=with_whole_norms(POST_NORMS),
        norm_kind="gemma",
        whole_every=4,
    ),
    "phi3": Family(
        defaults={
            **COMMON,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "sliding_window": None,
        },
        attention=fused("self_attn", "qkv_proj", "o_proj", bias=never),
        mlp=phi3_mlp,
        norms=LLAMA_NORMS,
        partial_rotary=True,
    ),
    "glm": Family(defaults=_GLM, attention=GLM_ATTENTION, mlp=phi3_mlp, norms=LLAMA_NORMS, partial_rotary=True),
    "glm4": Family(defaults=_GLM, attention=GLM_ATTENTION, mlp=phi3_mlp, norms=GLM4_NORMS, partial_rotary=True),
    "gemma": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        norm_kind="gemma",
    ),
    "gemma2": Family(
        defaults={**_GEMMA2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        keys={"hidden_act": "hidden_activation"},
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=GEMMA2_NORMS,
        norm_kind="gemma",
        whole_every=2,
        eager_attention=True,  # whether scores are capped or not
    ),
    "gemma3_text": Family(
        defaults={
            **_GEMMA2,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "final_logit_softcapping": None,  # its attention never asks for attn_logit_softcapping
        },
        keys={"hidden_act": "hidden_activation"},
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=with_head_norms(GEMMA2_NORMS),
        norm_kind="gemma",
        whole_every=6,
        pattern_key="sliding_window_pattern",
    ),
    "cohere": Family(
        defaults={**_COHERE, "use_qk_norm": False},
        attention=LLAMA_ATTENTION,
        mlp=beside_attention(gated_mlp),
        norms=where(flag("use_qk_norm"), with_whole_norms(_COHERE_NORMS), _COHERE_NORMS),
        norm_kind="centred",
        parallel=always,
    ),
    "cohere2": Family(
        defaults={**_COHERE, "sliding_window": 4096},
        attention=LLAMA_ATTENTION,
        mlp=beside_attention(gated_mlp),
        norms=_COHERE_NORMS,
        norm_kind="centred",
        parallel=always,
        whole_every=4,
        pattern_key="sliding_window_pattern",
    ),
}
