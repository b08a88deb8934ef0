"""Later kin of LLaMA that differ from it in few keys, in the names of norms or in how positions are rotated."""

from __future__ import annotations

from shardwise.catalog.attention import LLAMA_ATTENTION, separate
from shardwise.catalog.blocks import LLAMA_NORMS, always, flag, gated_mlp, never, with_head_norms
from shardwise.catalog.families_llama import MISTRAL
from shardwise.catalog.family import LLAMA, LLAMA_BIASES, Family
from shardwise.catalog.windows import without_rotation

#: model_type -> its rules.
LATER_LLAMA_KIN: dict[str, Family] = {
    "ernie4_5": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
        keys={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
    ),
    "helium": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "max_position_embeddings": 4096,
        },
        attention=separate(bias=flag("attention_bias"), output_bias=never),
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        norm_kind="gemma",
        even_heads=always,
    ),
    "hunyuan_v1_dense": Family(
        defaults={**LLAMA, "vocab_size": 290943},
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=with_head_norms(LLAMA_NORMS, query="query_layernorm", key="key_layernorm"),
    ),
    "ministral": MISTRAL,
    "smollm3": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        numbers=("no_rope_layer_interval",),
        layer_lists=("no_rope_layers",),
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        optional_window=True,
        windowed=without_rotation,
    ),
}
