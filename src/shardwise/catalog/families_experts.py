"""Mixtral and its kin: experts in every block, or in every so-manieth."""

from __future__ import annotations

from typing import Any

from shardwise.catalog.attention import (
    LLAMA_ATTENTION,
    UNBIASED_ATTENTION,
    separate,
)
from shardwise.catalog.blocks import (
    LAYER_NORMS,
    LLAMA_NORMS,
    Norms,
    always,
    flag,
    gated,
    gated_mlp,
    never,
    no_matrices,
    with_head_norms,
    with_whole_norms,
)
from shardwise.catalog.experts import changed, every_few, experts, interleaved, shared_gate, together
from shardwise.catalog.family import BIASED_FINAL_NORM, COMMON, LLAMA, Family
from shardwise.catalog.windows import every_other_up_to_a_layer
from shardwise.spec.model import Norm

_ROUTED = ("num_experts", "num_experts_per_tok")
_LOCAL = ("num_local_experts", "num_experts_per_tok")
#: Of these families transformers reads the number of experts by two names; the second counts where both are stated.
_CALLED_LOCAL: dict[str, Any] = {"keys": {"num_experts": "num_local_experts"}, "fallbacks": ("num_experts",)}
_CALLED_PLAIN: dict[str, Any] = {"keys": {"num_local_experts": "num_experts"}, "fallbacks": ("num_local_experts",)}
_MIXTRAL: dict[str, Any] = {
    **COMMON,
    "vocab_size": 32000,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
_QWEN_MOE: dict[str, Any] = {
    **COMMON,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}


def _with_sinks(norms: Norms) -> Norms:
    """A score for each head beside those of the keys; a parameter that stands among the norms and keeps nothing."""
    return lambda d: (Norm(name="self_attn.sinks", size=d.heads, width=0), *norms(d))


#: model_type -> its rules.
EXPERTS: dict[str, Family] = {
    "mixtral": Family(
        defaults=_MIXTRAL,
        **_CALLED_PLAIN,
        numbers=_LOCAL,
        attention=UNBIASED_ATTENTION,
        mlp=no_matrices,
        experts=experts("mlp", count="num_local_experts"),
        bare_experts="mixtral",
        norms=LLAMA_NORMS,
    ),
    "phimoe": Family(
        defaults={
            **_MIXTRAL,
            "vocab_size": 32064,
            "intermediate_size": 6400,
            "num_local_experts": 16,
            "attention_bias": False,
            "lm_head_bias": False,
        },
        numbers=_LOCAL,
        attention=LLAMA_ATTENTION,
        mlp=no_matrices,
        experts=changed(experts("mlp", router="router", count="num_local_experts"), router=True, adaptable=True),
        norms=LAYER_NORMS,
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
        head_bias=flag("lm_head_bias"),
    ),
    "olmoe": Family(
        defaults={
            **COMMON,
            "vocab_size": 50304,
            "hidden_size": 2048,
            "intermediate_size": 2048,
            "attention_bias": False,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
        **_CALLED_LOCAL,
        numbers=_ROUTED,
        attention=LLAMA_ATTENTION,
        mlp=no_matrices,
        experts=experts("mlp"),
        bare_experts="qwen2_moe",
        norms=with_whole_norms(LLAMA_NORMS),
        even_heads=always,
    ),
    "granitemoe": Family(
        defaults={**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "logits_scaling": 1.0},
        numbers=_LOCAL,
        attention=LLAMA_ATTENTION,
        mlp=no_matrices,
        experts=experts("block_sparse_moe", router="router", count="num_local_experts"),
        norms=LLAMA_NORMS,
    ),
    "qwen2_moe": Family(
        defaults={
            **_QWEN_MOE,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        numbers=(*_ROUTED, "moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step"),
        optional=("max_window_layers",),
        layer_lists=("mlp_only_layers",),
        attention=separate(bias=flag("qkv_bias"), output_bias=never),
        mlp=gated_mlp,
        experts=together(
            experts("mlp", width="moe_intermediate_size"),
            gated("mlp.shared_expert", width=lambda d: d.numbers["shared_expert_intermediate_size"]),
            shared_gate,
        ),
        placement=every_few,
        norms=LLAMA_NORMS,
        optional_window=True,
        windowed=every_other_up_to_a_layer,
    ),
    "qwen3_moe": Family(
        defaults={
            **_QWEN_MOE,
            "intermediate_size": 6144,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "attention_bias": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        **_CALLED_LOCAL,
        numbers=(*_ROUTED, "moe_intermediate_size", "decoder_sparse_step"),
        layer_lists=("mlp_only_layers",),
        attention=LLAMA_ATTENTION,
        mlp=gated_mlp,
        experts=experts("mlp", width="moe_intermediate_size"),
        placement=every_few,
        bare_experts="qwen2_moe",
        norms=with_head_norms(LLAMA_NORMS),
        optional_window=True,
    ),
    "llama4_text": Family(
        # Every token runs through every expert, with zeros where it is not routed to.
        defaults={
            **COMMON,
            "vocab_size": 202048,
            "hidden_size": 5120,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "attention_bias": False,
            "num_local_experts": 16,
            "num_experts_per_tok": 1,
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
            "sliding_window": 8192,
        },
        keys={"sliding_window": "attention_chunk_size"},
        numbers=(*_LOCAL, "intermediate_size_mlp", "interleave_moe_layer_step"),
        layer_lists=("moe_layers",),
        attention=LLAMA_ATTENTION,
        mlp=gated("feed_forward", width=lambda d: d.numbers["intermediate_size_mlp"]),
        experts=together(
            changed(
                changed(
                    experts("feed_forward", router="router", count="num_local_experts"), router=True, adaptable=True
                ),
                stacks=True,
                transposed=True,
                runs_all=True,
            ),
            gated("feed_forward.shared_expert", width=lambda d: d.intermediate),
        ),
        placement=interleaved,
        norms=LLAMA_NORMS,
        whole_every=4,
        pattern_key="no_rope_layer_interval",
    ),
    "gpt_oss": Family(
        defaults={
            **COMMON,
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "attention_bias": True,
        },
        **_CALLED_PLAIN,
        numbers=_LOCAL,
        attention=LLAMA_ATTENTION,
        mlp=no_matrices,
        experts=changed(
            changed(experts("mlp", router="router", count="num_local_experts"), router=True, stacks=True, bias=True),
            stacks=True,
            transposed=True,
        ),
        norms=_with_sinks(LLAMA_NORMS),
        norm_kind="gemma",
        whole_every=2,
        eager_attention=True,
    ),
}
