"""Mixtures of experts, in every block or in some."""

from dataclasses import replace
from typing import Any

from shardwise.catalog.families import blocks
from shardwise.catalog.families.experts import (
    behind_first,
    changed,
    every_few,
    experts,
    interleaved,
    shared_gate,
    together,
    whole,
)
from shardwise.catalog.families.family import BIASED_FINAL_NORM, COMMON, LLAMA, Family, config
from shardwise.spec.model.shape import Norm

_ROUTED = ("num_experts", "num_experts_per_tok")
_LOCAL = ("num_local_experts", "num_experts_per_tok")
#: transformers reads these families' number of experts by two names; the second counts where both are stated.
_CALLED_LOCAL: dict[str, Any] = {"keys": {"num_experts": "num_local_experts"}, "fallbacks": ("num_experts",)}
_CALLED_PLAIN: dict[str, Any] = {"keys": {"num_local_experts": "num_experts"}, "fallbacks": ("num_local_experts",)}
_MIXTRAL: dict[str, Any] = {
    **COMMON,
    **config(32000, None, 14336, None, None, 131072, 8, sliding_window=None, num_local_experts=8),
    **config(num_experts_per_tok=2),
}
_QWEN_MOE: dict[str, Any] = {
    **COMMON,
    **config(151936, 2048, None, 24, None, 32768, use_sliding_window=False, sliding_window=4096),
    **config(decoder_sparse_step=1, mlp_only_layers=None),
}
_DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "vocab_size": 102400,
    **config(q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128),
    **config(n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=None, moe_intermediate_size=1407),
    **config(first_k_dense_replace=0),
}
_SHARED_NUMBERS = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size")
_LATENT_NUMBERS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _latent_heads(d: blocks.Dimensions) -> blocks.Dimensions:
    """Each head has keys of its own, of a rotated part and another."""
    return replace(d, kv_heads=d.heads, head_dim=d.numbers["qk_nope_head_dim"] + d.numbers["qk_rope_head_dim"])


def _shared_width(d: blocks.Dimensions) -> int:
    return d.numbers["n_shared_experts"] * d.numbers["moe_intermediate_size"]


_SHARED: dict[str, Any] = {
    "experts": together(
        experts("mlp", count="n_routed_experts", width="moe_intermediate_size"),
        blocks.gated("mlp.shared_experts", width=_shared_width, bias=blocks.mlp_bias),
    ),
    "placement": behind_first,
    "bare_experts": "qwen2_moe",
    "fallbacks": ("n_routed_experts",),
    "partial_rotary": True,
}
_LATENT: dict[str, Any] = {
    **_SHARED,
    "numbers": (*_LATENT_NUMBERS, *_SHARED_NUMBERS),
    "optional": ("q_lora_rank", "first_k_dense_replace"),
    "refine": _latent_heads,
    "attention": blocks.latent_attention,
    "norms": blocks.latent_norms,
}
_WHOLE_LATENT: dict[str, Any] = {**_LATENT, "attention": whole(blocks.latent_attention)}
#: Of families whose attention transformers' tensor-parallel plans leave out, or slice in another way.
_WHOLE_ATTENTION = whole(blocks.LLAMA_ATTENTION)
_LOCAL_EXPERTS = experts("mlp", count="num_local_experts")
_LOCAL_EXPERTS_WITH_ROUTER = experts("mlp", router="router", count="num_local_experts")

#: model_type -> its rules.
EXPERTS: dict[str, Family] = {
    "mixtral": Family(
        defaults=_MIXTRAL,
        **_CALLED_PLAIN,
        numbers=_LOCAL,
        attention=blocks.UNBIASED_ATTENTION,
        mlp=blocks.nothing,
        experts=_LOCAL_EXPERTS,
        bare_experts="mixtral",
    ),
    "phimoe": Family(
        defaults={
            **_MIXTRAL,
            **config(vocab_size=32064, intermediate_size=6400, num_local_experts=16, attention_bias=False),
            **config(lm_head_bias=False),
        },
        numbers=_LOCAL,
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=_LOCAL_EXPERTS_WITH_ROUTER,
        norms=blocks.LAYER_NORMS,
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
        head_bias=blocks.flag("lm_head_bias"),
    ),
    "olmoe": Family(
        defaults={
            **COMMON,
            **config(50304, 2048, 2048, 16, 16, 4096, attention_bias=False, num_experts=64, num_experts_per_tok=8),
        },
        **_CALLED_LOCAL,
        numbers=_ROUTED,
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=experts("mlp"),
        bare_experts="qwen2_moe",
        norms=blocks.with_whole_norms(blocks.LLAMA_NORMS),
        even_heads=blocks.always,
    ),
    "granitemoe": Family(
        defaults={**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "logits_scaling": 1.0},
        numbers=_LOCAL,
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=experts("block_sparse_moe", router="router", count="num_local_experts"),
        scales_stream=True,
    ),
    "qwen2_moe": Family(
        defaults={
            **_QWEN_MOE,
            **config(intermediate_size=5632, num_attention_heads=16, num_key_value_heads=16, qkv_bias=True),
            **config(max_window_layers=28, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408),
            **config(shared_expert_intermediate_size=5632),
        },
        numbers=(*_ROUTED, "moe_intermediate_size", "shared_expert_intermediate_size", "decoder_sparse_step"),
        optional=("max_window_layers",),
        layer_lists=("mlp_only_layers",),
        attention=blocks.separate(bias=blocks.flag("qkv_bias"), output_bias=blocks.never),
        experts=together(
            experts("mlp", width="moe_intermediate_size"),
            whole(blocks.gated("mlp.shared_expert", width=lambda d: d.numbers["shared_expert_intermediate_size"])),
            shared_gate,
        ),
        placement=every_few,
        optional_window=True,
        windowed=blocks.every_other_up_to_a_layer,
    ),
    "qwen3_moe": Family(
        defaults={
            **_QWEN_MOE,
            **config(intermediate_size=6144, num_key_value_heads=4, attention_bias=False, num_experts=128),
            **config(num_experts_per_tok=8, moe_intermediate_size=768),
        },
        **_CALLED_LOCAL,
        numbers=(*_ROUTED, "moe_intermediate_size", "decoder_sparse_step"),
        layer_lists=("mlp_only_layers",),
        experts=experts("mlp", width="moe_intermediate_size"),
        placement=every_few,
        bare_experts="qwen2_moe",
        norms=blocks.with_head_norms(blocks.LLAMA_NORMS),
        optional_window=True,
    ),
    "llama4_text": Family(
        # Every token runs through every expert, with zeros where it is not routed.
        defaults={
            **COMMON,
            **config(202048, 5120, 8192, 48, 40, 131072, 8, intermediate_size_mlp=16384, head_dim=128),
            **config(attention_bias=False, sliding_window=8192, num_local_experts=16, num_experts_per_tok=1),
            **config(moe_layers=None, interleave_moe_layer_step=1),
        },
        keys={"sliding_window": "attention_chunk_size"},
        numbers=(*_LOCAL, "intermediate_size_mlp", "interleave_moe_layer_step"),
        layer_lists=("moe_layers",),
        mlp=blocks.gated("feed_forward", width=lambda d: d.numbers["intermediate_size_mlp"]),
        experts=together(
            changed(
                experts("feed_forward", router="router", count="num_local_experts"),
                stacks=True,
                transposed=True,
                runs_all=True,
            ),
            blocks.gated("feed_forward.shared_expert", width=lambda d: d.intermediate),
        ),
        placement=interleaved,
        whole_every=4,
        pattern_key="no_rope_layer_interval",
    ),
    "gpt_oss": Family(
        defaults={
            **COMMON,
            **config(201088, 2880, 2880, 36, 64, 131072, 8, head_dim=64, sliding_window=128, attention_bias=True),
            **config(num_local_experts=128, num_experts_per_tok=4),
        },
        **_CALLED_PLAIN,
        numbers=_LOCAL,
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=changed(
            changed(_LOCAL_EXPERTS_WITH_ROUTER, router=True, stacks=True, bias=True), stacks=True, transposed=True
        ),
        # A score for each head beside those of the keys: a parameter that is listed with the norms.
        norms=lambda d: (Norm("self_attn.sinks", d.heads, 0), *blocks.LLAMA_NORMS(d)),
        norm_kind="gemma",
        whole_every=2,
        eager_attention=True,
    ),
    "deepseek_v2": Family(
        defaults={**_DEEPSEEK, "mlp_bias": False}, keys={"n_routed_experts": "num_experts"}, **_LATENT
    ),
    "deepseek_v3": Family(
        defaults={
            **_DEEPSEEK,
            **config(129280, 7168, 18432, 61, 128, 4096, 128, n_routed_experts=256, n_shared_experts=1),
            **config(num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3),
        },
        keys={"n_routed_experts": "num_local_experts"},
        **_WHOLE_LATENT,
    ),
    "glm4_moe": Family(
        defaults={
            **LLAMA,
            **config(151552, None, 10944, 46, 96, 131072, 8, use_qk_norm=False, n_routed_experts=128),
            **config(n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1),
        },
        keys={"n_routed_experts": "num_local_experts"},
        **_SHARED,
        numbers=_SHARED_NUMBERS,
        optional=("first_k_dense_replace",),
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.never),
        norms=blocks.where(blocks.flag("use_qk_norm"), blocks.with_head_norms(blocks.LLAMA_NORMS), blocks.LLAMA_NORMS),
        floors_head_dim=True,
    ),
}
