"""One table row per family of models: the keys of config.json it reads, their defaults, and how its blocks are built.

The defaults are those of transformers' configuration classes (checked against them by the tests), because a
config.json leaves out what equals the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.catalog.blocks import (
    GEMMA2_NORMS,
    LAYER_NORMS,
    LLAMA_NORMS,
    Matrices,
    Norms,
    attention,
    gated_mlp,
    gpt2_attention,
    gpt_neox_attention,
    hidden_norms,
    olmo2_norms,
    phi3_attention,
    phi3_mlp,
    plain_mlp,
    qwen2_attention,
    qwen3_norms,
    stablelm_attention,
    stablelm_norms,
    starcoder2_attention,
)
from shardwise.spec.model import MlpKind, NormKind


@dataclass(frozen=True, kw_only=True)
class Family:
    """The rules of one `model_type`.

    Attributes:
        defaults: the keys this family reads, with what they are where config.json leaves them out. A None for
            `num_key_value_heads` means as many as heads, for `head_dim` hidden_size / heads.
        keys: this family's own names of the usual keys.
        norm_bias: its norms (the final one too) have biases.
        learned_positions: it has a table of position embeddings.
        partial_rotary: see ModelShape.
        optional_window: `sliding_window` counts only where `use_sliding_window` says so.
    """

    defaults: Mapping[str, Any]
    attention: Matrices
    mlp: Matrices
    norms: Norms
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    mlp_kind: MlpKind = "gated"
    norm_kind: NormKind = "rms"
    norm_bias: bool = False
    learned_positions: bool = False
    partial_rotary: bool = False
    optional_window: bool = False


_EQUAL_HEADS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_COMMON: dict[str, Any] = {**_EQUAL_HEADS, "num_key_value_heads": None, "head_dim": None}
_LLAMA: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "attention_bias": False,
}
_LLAMA_BIASES: dict[str, Any] = {**_LLAMA, "mlp_bias": False}
_QWEN: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_GEMMA: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
}

#: model_type -> its rules.
FAMILIES: dict[str, Family] = {
    "llama": Family(defaults=_LLAMA_BIASES, attention=attention, mlp=gated_mlp, norms=LLAMA_NORMS),
    "granite": Family(
        defaults={**_LLAMA_BIASES, "logits_scaling": 1.0}, attention=attention, mlp=gated_mlp, norms=LLAMA_NORMS
    ),
    "mistral": Family(
        defaults={
            **_COMMON,
            "vocab_size": 32000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        attention=attention,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
    ),
    "qwen2": Family(defaults=_QWEN, attention=qwen2_attention, mlp=gated_mlp, norms=LLAMA_NORMS, optional_window=True),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128, "attention_bias": False},
        attention=attention,
        mlp=gated_mlp,
        norms=qwen3_norms,
        optional_window=True,
    ),
    "smollm3": Family(
        defaults={
            **_LLAMA_BIASES,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
        },
        attention=attention,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        optional_window=True,
    ),
    "olmo2": Family(
        defaults={**_LLAMA, "vocab_size": 50304},
        attention=attention,
        mlp=gated_mlp,
        norms=olmo2_norms,
        norm_kind="gemma",
    ),
    "phi3": Family(
        defaults={
            **_COMMON,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "sliding_window": None,
        },
        attention=phi3_attention,
        mlp=phi3_mlp,
        norms=LLAMA_NORMS,
        partial_rotary=True,
    ),
    "gemma": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        attention=attention,
        mlp=gated_mlp,
        norms=LLAMA_NORMS,
        norm_kind="gemma",
    ),
    "gemma2": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        keys={"hidden_act": "hidden_activation"},
        attention=attention,
        mlp=gated_mlp,
        norms=GEMMA2_NORMS,
        norm_kind="gemma",
    ),
    "stablelm": Family(
        defaults={
            **_EQUAL_HEADS,
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        attention=stablelm_attention,
        mlp=gated_mlp,
        norms=stablelm_norms,
        partial_rotary=True,
        norm_kind="layer",
        norm_bias=True,
    ),
    "starcoder2": Family(
        defaults={
            **_COMMON,
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "hidden_act": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "use_bias": True,
            "sliding_window": None,
        },
        attention=starcoder2_attention,
        mlp=plain_mlp("c_fc", "c_proj", bias=lambda d: d.flags["use_bias"]),
        norms=LAYER_NORMS,
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
    ),
    "gpt_neox": Family(
        defaults={
            **_EQUAL_HEADS,
            "vocab_size": 50432,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu",
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        attention=gpt_neox_attention,
        mlp=plain_mlp("dense_h_to_4h", "dense_4h_to_h", bias=lambda _: True),
        norms=LAYER_NORMS,
        partial_rotary=True,
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
    ),
    "gpt2": Family(
        defaults={
            **_EQUAL_HEADS,
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
        keys={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "hidden_act": "activation_function",
        },
        attention=gpt2_attention,
        mlp=plain_mlp("c_fc", "c_proj", bias=lambda _: True, transposed=True),
        norms=hidden_norms("ln_1", "ln_2", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
        learned_positions=True,
    ),
}
