"""DeepSeek and its kin: the first blocks dense, experts in the others, and some of them shared by all tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.catalog.attention import (
    latent_attention,
    separate,
    with_latent_norms,
)
from shardwise.catalog.blocks import (
    LLAMA_NORMS,
    Dimensions,
    flag,
    gated,
    gated_mlp,
    mlp_bias,
    never,
    where,
    with_head_norms,
)
from shardwise.catalog.experts import behind_first, experts, together
from shardwise.catalog.family import LLAMA, Family

_DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "vocab_size": 102400,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": None,
    "moe_intermediate_size": 1407,
    "first_k_dense_replace": 0,
}
_DEEPSEEK_NUMBERS = (
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)


def _latent_heads(d: Dimensions) -> Dimensions:
    """Every head has keys of its own, with a part that is rotated and one that is not."""
    return replace(d, kv_heads=d.heads, head_dim=d.numbers["qk_nope_head_dim"] + d.numbers["qk_rope_head_dim"])


def _shared_width(d: Dimensions) -> int:
    return d.numbers["n_shared_experts"] * d.numbers["moe_intermediate_size"]


_DEEPSEEK_EXPERTS = together(
    experts("mlp", count="n_routed_experts", width="moe_intermediate_size"),
    gated("mlp.shared_experts", width=_shared_width, bias=mlp_bias),
)

#: model_type -> its rules.
SHARED: dict[str, Family] = {
    "deepseek_v2": Family(
        defaults={**_DEEPSEEK, "mlp_bias": False},
        keys={"n_routed_experts": "num_experts"},
        fallbacks=("n_routed_experts",),
        numbers=_DEEPSEEK_NUMBERS,
        optional=("q_lora_rank", "first_k_dense_replace"),
        refine=_latent_heads,
        attention=latent_attention,
        mlp=gated_mlp,
        experts=_DEEPSEEK_EXPERTS,
        placement=behind_first,
        bare_experts="qwen2_moe",
        norms=with_latent_norms(LLAMA_NORMS),
        partial_rotary=True,
    ),
    "deepseek_v3": Family(
        defaults={
            **_DEEPSEEK,
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "max_position_embeddings": 4096,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
        },
        keys={"n_routed_experts": "num_local_experts"},
        fallbacks=("n_routed_experts",),
        numbers=_DEEPSEEK_NUMBERS,
        optional=("q_lora_rank", "first_k_dense_replace"),
        refine=_latent_heads,
        attention=latent_attention,
        mlp=gated_mlp,
        experts=_DEEPSEEK_EXPERTS,
        placement=behind_first,
        bare_experts="qwen2_moe",
        norms=with_latent_norms(LLAMA_NORMS),
        partial_rotary=True,
    ),
    "glm4_moe": Family(
        defaults={
            **LLAMA,
            "vocab_size": 151552,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "use_qk_norm": False,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
        },
        keys={"n_routed_experts": "num_local_experts"},
        fallbacks=("n_routed_experts",),
        numbers=("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        optional=("first_k_dense_replace",),
        attention=separate(bias=flag("attention_bias"), output_bias=never),
        mlp=gated_mlp,
        experts=_DEEPSEEK_EXPERTS,
        placement=behind_first,
        bare_experts="qwen2_moe",
        norms=where(flag("use_qk_norm"), with_head_norms(LLAMA_NORMS), LLAMA_NORMS),
        floors_head_dim=True,
        partial_rotary=True,
    ),
}
