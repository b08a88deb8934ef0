"""Families between GPT-2 and LLaMA: layer norms, and rotary positions or none."""

from __future__ import annotations

from dataclasses import replace

from shardwise.catalog.attention import LLAMA_ATTENTION, fused, separate
from shardwise.catalog.blocks import (
    LAYER_NORMS,
    Dimensions,
    always,
    beside_attention,
    falcon_norms,
    flag,
    gated_mlp,
    hidden_norms,
    never,
    phi_norms,
    plain_mlp,
    stablelm_norms,
)
from shardwise.catalog.family import BIASED_FINAL_NORM, COMMON, EQUAL_HEADS, LLAMA_BIASES, Family
from shardwise.spec.outer_names import OuterNames


def _falcon_heads(d: Dimensions) -> Dimensions:
    """The new decoder has groups, the old one a head for all or one for each."""
    if d.flags["new_decoder_architecture"]:
        return replace(d, kv_heads=d.optional["num_kv_heads"] or d.heads)
    return replace(d, kv_heads=1) if d.flags["multi_query"] else d


def _falcon_parallel(d: Dimensions) -> bool:
    return d.flags["new_decoder_architecture"] or d.flags["parallel_attn"]


def _falcon_shares_norm(d: Dimensions) -> bool:
    return _falcon_parallel(d) and len(falcon_norms(d)) == 1


#: model_type -> its rules.
LAYER_NORM: dict[str, Family] = {
    "phi": Family(
        defaults={
            **COMMON,
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu_new",
            "qk_layernorm": False,
        },
        attention=separate(bias=always, output="dense"),
        mlp=beside_attention(plain_mlp("mlp.fc1", "mlp.fc2", bias=always)),
        norms=phi_norms,
        even_heads=flag("qk_layernorm"),
        mlp_kind="plain",
        names=OuterNames(final_norm="model.final_layernorm"),
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
        head_bias=always,
        parallel=always,
        partial_rotary=True,
    ),
    "stablelm": Family(
        defaults={
            **EQUAL_HEADS,
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        parallel=flag("use_parallel_residual"),
        attention=separate(bias=flag("use_qkv_bias"), output_bias=never),
        mlp=gated_mlp,
        norms=stablelm_norms,
        partial_rotary=True,
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
    ),
    "starcoder2": Family(
        defaults={
            **COMMON,
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
        attention=separate(bias=flag("use_bias")),
        mlp=plain_mlp("mlp.c_fc", "mlp.c_proj", bias=flag("use_bias")),
        norms=LAYER_NORMS,
        mlp_kind="plain",
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
    ),
    "nemotron": Family(
        defaults={
            **LLAMA_BIASES,
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "max_position_embeddings": 4096,
            "hidden_act": "relu2",
        },
        attention=LLAMA_ATTENTION,
        mlp=plain_mlp("mlp.up_proj", "mlp.down_proj", bias=flag("mlp_bias")),
        norms=LAYER_NORMS,
        mlp_kind="plain",
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
        partial_rotary=True,
    ),
    "falcon": Family(
        defaults={
            **EQUAL_HEADS,
            "vocab_size": 65024,
            "hidden_size": 4544,
            "intermediate_size": None,
            "num_attention_heads": 71,
            "max_position_embeddings": 2048,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "bias": False,
            "multi_query": True,
            "parallel_attn": True,
            "new_decoder_architecture": False,
            "num_kv_heads": None,
            "num_ln_in_parallel_attn": None,
        },
        keys={"hidden_size": "n_embed", "intermediate_size": "ffn_hidden_size", "hidden_act": "activation"},
        fallbacks=("hidden_size",),
        optional=("num_kv_heads", "num_ln_in_parallel_attn"),
        refine=_falcon_heads,
        attention=fused("self_attention", "query_key_value", "dense", bias=flag("bias")),
        mlp=beside_attention(
            plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=flag("bias")), where=_falcon_shares_norm
        ),
        norms=falcon_norms,
        mlp_kind="plain",
        names=OuterNames(
            embedding="transformer.word_embeddings", final_norm="transformer.ln_f", blocks="transformer.h"
        ),
        norm_kind="layer",
        final_norm=BIASED_FINAL_NORM,
        parallel=_falcon_parallel,
    ),
    "mpt": Family(
        defaults={
            **EQUAL_HEADS,
            "vocab_size": 50368,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
            "logit_scale": None,
        },
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
        attention=fused("attn", "Wqkv", "out_proj", bias=never),
        mlp=plain_mlp("ffn.up_proj", "ffn.down_proj", bias=never),
        norms=hidden_norms("norm_1", "norm_2"),
        mlp_kind="plain",
        names=OuterNames(embedding="transformer.wte", final_norm="transformer.norm_f", blocks="transformer.blocks"),
        norm_kind="layer",
        activation="gelu",
        eager_attention=True,
    ),
}
