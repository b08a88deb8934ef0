"""LLaMA and families like it: rotary positions, gated MLPs, RMS norms, all blocks alike."""

from typing import Any

from shardwise.catalog.families import blocks
from shardwise.catalog.families.family import COMMON, LLAMA, LLAMA_BIASES, Family, config

_TIED = {"tie_word_embeddings": True}
_QWEN: dict[str, Any] = {
    **COMMON,
    **config(151936, None, 22016, None, None, 32768, 32, use_sliding_window=False, sliding_window=4096),
    **config(max_window_layers=28),
}
_GEMMA: dict[str, Any] = {
    **COMMON,
    **config(256000, 3072, 24576, 28, 16, 8192, 16, head_dim=256, hidden_act="gelu_pytorch_tanh"),
    **config(attention_bias=False, **_TIED),
}
_GEMMA2: dict[str, Any] = {**_GEMMA, **config(256000, 2304, 9216, 26, 8, 8192, 4), "sliding_window": 4096}
_GLM: dict[str, Any] = {**LLAMA, **config(151552, None, 13696, 40, None, 131072, 2), "head_dim": 128}
_GLM["attention_bias"] = True
_OLMO: dict[str, Any] = {**LLAMA, "vocab_size": 50304}
_COHERE: dict[str, Any] = {
    **COMMON,
    **config(256000, 8192, 22528, 40, 64, 8192, attention_bias=False, logit_scale=0.0625, **_TIED),
}
_COHERE_NORMS = blocks.hidden_norms("input_layernorm")
_MISTRAL = Family(
    defaults={**COMMON, **config(32000, None, 14336, None, None, 131072, 8), "sliding_window": 4096},
    attention=blocks.UNBIASED_ATTENTION,
)

#: model_type -> its rules.
LLAMA_LIKE: dict[str, Family] = {
    "llama": Family(defaults=LLAMA_BIASES),
    "granite": Family(defaults={**LLAMA_BIASES, "logits_scaling": 1.0}, scales_stream=True),
    "internlm3": Family(
        defaults={**LLAMA_BIASES, **config(128512, None, 10240, 48, None, 32768, 2), "head_dim": 128},
        keys={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
        fallbacks=("attention_bias", "mlp_bias"),
    ),
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "qwen2": Family(
        defaults=_QWEN,
        optional=("max_window_layers",),
        attention=blocks.QWEN2_ATTENTION,
        optional_window=True,
        windowed=blocks.from_a_layer_on,
    ),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128, "attention_bias": False},
        optional=("max_window_layers",),
        norms=blocks.with_head_norms(blocks.LLAMA_NORMS),
        optional_window=True,
        windowed=blocks.from_a_layer_on,
    ),
    "arcee": Family(
        defaults={**LLAMA_BIASES, **config(32000, 2560, 18432, None, None, 4096), "hidden_act": "relu2"},
        mlp=blocks.plain_mlp("mlp.up_proj", "mlp.down_proj", bias=blocks.flag("mlp_bias")),
        mlp_kind="plain",
    ),
    "seed_oss": Family(
        defaults={
            **LLAMA_BIASES,
            **config(155136, None, 27648, 64, 80, 524288, 8, head_dim=128, attention_bias=True),
            **config(attention_out_bias=False, attention_dropout=0.1, residual_dropout=0.1),
        },
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.flag("attention_out_bias")),
    ),
    "exaone4": Family(
        defaults={**COMMON, **config(102400, None, 16384, None, None, 2048, 32), "sliding_window": 4096},
        attention=blocks.UNBIASED_ATTENTION,
        norms=blocks.with_head_norms(blocks.POST_NORMS),
        whole_every=4,
        pattern_key="sliding_window_pattern",
    ),
    "olmo": Family(
        defaults=_OLMO,
        norms=blocks.bare_norms("input_layernorm", "post_attention_layernorm"),
        norm_kind="layer",
        final_norm=blocks.bare_norms("norm"),
    ),
    "olmo2": Family(defaults=_OLMO, norms=blocks.with_whole_norms(blocks.POST_NORMS), norm_kind="gemma"),
    "olmo3": Family(
        defaults={**_OLMO, "sliding_window": 4096},
        norms=blocks.with_whole_norms(blocks.POST_NORMS),
        norm_kind="gemma",
        whole_every=4,
    ),
    "phi3": Family(
        defaults={**COMMON, **config(32064, 3072, 8192, None, None, 4096), "sliding_window": None},
        attention=blocks.fused("self_attn", "qkv_proj", "o_proj", bias=blocks.never),
        mlp=blocks.phi3_mlp,
        partial_rotary=True,
    ),
    "glm": Family(defaults=_GLM, attention=blocks.GLM_ATTENTION, mlp=blocks.phi3_mlp, partial_rotary=True),
    "glm4": Family(
        defaults=_GLM, attention=blocks.GLM_ATTENTION, mlp=blocks.phi3_mlp, norms=blocks.GLM4_NORMS, partial_rotary=True
    ),
    "gemma": Family(defaults=_GEMMA, norm_kind="gemma"),
    "gemma2": Family(
        defaults={**_GEMMA2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        keys={"hidden_act": "hidden_activation"},
        norms=blocks.GEMMA2_NORMS,
        norm_kind="gemma",
        whole_every=2,
        eager_attention=True,  # whether scores are capped or not
    ),
    "gemma3_text": Family(
        # Its attention does not read attn_logit_softcapping.
        defaults={**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "final_logit_softcapping": None},
        keys={"hidden_act": "hidden_activation"},
        norms=blocks.with_head_norms(blocks.GEMMA2_NORMS),
        norm_kind="gemma",
        whole_every=6,
        pattern_key="sliding_window_pattern",
    ),
    "cohere": Family(
        defaults={**_COHERE, "use_qk_norm": False},
        mlp=blocks.beside_attention(blocks.gated_mlp),
        norms=blocks.where(blocks.flag("use_qk_norm"), blocks.with_whole_norms(_COHERE_NORMS), _COHERE_NORMS),
        norm_kind="centred",
        parallel=blocks.always,
    ),
    "cohere2": Family(
        defaults={**_COHERE, "sliding_window": 4096},
        mlp=blocks.beside_attention(blocks.gated_mlp),
        norms=_COHERE_NORMS,
        norm_kind="centred",
        parallel=blocks.always,
        whole_every=4,
        pattern_key="sliding_window_pattern",
    ),
    "ernie4_5": Family(
        defaults={**LLAMA_BIASES, **config(103424, 1024, 3072, 18, 16, 131072, 2), "head_dim": 128, **_TIED},
        keys={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
    ),
    "helium": Family(
        defaults={**LLAMA_BIASES, **config(48000, 2560, 7040, 24, 20, 4096, 20), "head_dim": 128},
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.never),
        norm_kind="gemma",
        even_heads=blocks.always,
    ),
    "hunyuan_v1_dense": Family(
        defaults={**LLAMA, "vocab_size": 290943},
        norms=blocks.with_head_norms(blocks.LLAMA_NORMS, query="query_layernorm", key="key_layernorm"),
    ),
    "smollm3": Family(
        defaults={
            **LLAMA_BIASES,
            **config(128256, 2048, None, 36, 16, 32768, 4, use_sliding_window=False, sliding_window=None, **_TIED),
            **config(no_rope_layers=None, no_rope_layer_interval=4),
        },
        numbers=("no_rope_layer_interval",),
        layer_lists=("no_rope_layers",),
        optional_window=True,
        windowed=blocks.without_rotation,
    ),
}
