"""Mixtures of experts, in every block or in some."""

from dataclasses import replace
from typing import Any

from shardwise.catalog.families import blocks
from shardwise.catalog.families.expert_blocks import (
    behind_first,
    changed,
    every_few,
    experts,
    interleaved,
    shared_gate,
    together,
    whole,
)
from shardwise.catalog.families.family import BIASED_FINAL_NORM, Family
from shardwise.spec.model.shape import Norm


def _latent_heads(d: blocks.Dimensions) -> blocks.Dimensions:
    """Each head has keys of its own, of a rotated part and another."""
    return replace(d, kv_heads=d.heads, head_dim=d.numbers["qk_nope_head_dim"] + d.numbers["qk_rope_head_dim"])


def _misfit_of_latents(d: blocks.Dimensions) -> str:
    rotated, stated = d.numbers["qk_rope_head_dim"], d.optional.get("head_dim") or d.numbers["qk_rope_head_dim"]
    if d.kv_heads != d.heads:
        return f"num_key_value_heads is {d.kv_heads}; expected {d.heads}, as each head of this attention has its own"
    if rotated % 2 or rotated != stated:
        return f"qk_rope_head_dim is {rotated} and head_dim {stated}; expected one even number, which its code rotates"
    return _misfit_of_groups(d)


def _misfit_of_groups(d: blocks.Dimensions) -> str:
    count, wholes = d.numbers["n_routed_experts"], {**d.optional, **d.numbers}
    groups, chosen = wholes["n_group"] or count, wholes["topk_group"] or count
    if not d.flags["in_groups"] or (chosen <= groups and count % groups == 0 and count // groups > 1):
        return ""
    return f"n_group is {groups} and topk_group {chosen}, by which its code does not choose among {count} experts"


def _shared_width(d: blocks.Dimensions) -> int:
    return d.numbers["n_shared_experts"] * d.numbers["moe_intermediate_size"]


_SHARED: dict[str, Any] = {
    "experts": together(
        experts("mlp", count="n_routed_experts", width="moe_intermediate_size"),
        blocks.gated("mlp.shared_experts", width=_shared_width, bias=blocks.mlp_bias),
    ),
    "placement": behind_first,
}
_LATENT: dict[str, Any] = _SHARED | {
    "refine": _latent_heads,
    "misfit": _misfit_of_latents,
    "attention": blocks.latent_attention,
    "norms": blocks.latent_norms,
}
#: Of families whose attention transformers' tensor-parallel plans leave out, or slice in another
#: way.
_WHOLE_ATTENTION = whole(blocks.LLAMA_ATTENTION)
_LOCAL_EXPERTS = experts("mlp", count="num_local_experts")
_LOCAL_EXPERTS_WITH_ROUTER = experts("mlp", router="router", count="num_local_experts")

#: model_type -> its rules.
EXPERTS: dict[str, Family] = {
    "mixtral": Family(attention=blocks.UNBIASED_ATTENTION, mlp=blocks.nothing, experts=_LOCAL_EXPERTS),
    "phimoe": Family(
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=_LOCAL_EXPERTS_WITH_ROUTER,
        norms=blocks.LAYER_NORMS,
        final_norm=BIASED_FINAL_NORM,
        head_bias=blocks.flag("lm_head_bias"),
    ),
    "olmoe": Family(
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=experts("mlp"),
        norms=blocks.with_whole_norms(blocks.LLAMA_NORMS),
        even_heads=blocks.always,
    ),
    "granitemoe": Family(
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=experts("block_sparse_moe", router="router", count="num_local_experts"),
    ),
    "qwen2_moe": Family(
        attention=blocks.separate(bias=blocks.flag("qkv_bias"), output_bias=blocks.never),
        experts=together(
            experts("mlp", width="moe_intermediate_size"),
            whole(blocks.gated("mlp.shared_expert", width=lambda d: d.numbers["shared_expert_intermediate_size"])),
            shared_gate,
        ),
        placement=every_few,
        windowed=blocks.every_other_up_to_a_layer,
    ),
    "qwen3_moe": Family(
        experts=experts("mlp", width="moe_intermediate_size"),
        placement=every_few,
        norms=blocks.with_head_norms(blocks.LLAMA_NORMS),
    ),
    # Every token runs through every expert, with zeros where it is not routed.
    "llama4_text": Family(
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
    ),
    "gpt_oss": Family(
        attention=_WHOLE_ATTENTION,
        mlp=blocks.nothing,
        experts=changed(
            changed(_LOCAL_EXPERTS_WITH_ROUTER, router=True, stacks=True, bias=True), stacks=True, transposed=True
        ),
        # A score for each head beside those of the keys: a parameter that is listed with the norms.
        norms=lambda d: (Norm("self_attn.sinks", d.heads, 0), *blocks.LLAMA_NORMS(d)),
    ),
    "deepseek_v2": Family(**_LATENT),
    "deepseek_v3": replace(Family(**_LATENT), attention=whole(blocks.latent_attention)),
    "glm4_moe": Family(
        **_SHARED,
        attention=blocks.separate(bias=blocks.flag("attention_bias"), output_bias=blocks.never),
        norms=blocks.where(blocks.flag("use_qk_norm"), blocks.with_head_norms(blocks.LLAMA_NORMS), blocks.LLAMA_NORMS),
        misfit=_misfit_of_groups,
    ),
}
