"""GPT-2 and its kin: MLPs of two matrices, layer norms with biases, positions of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.catalog.attention import fused, separate
from shardwise.catalog.blocks import (
    LAYER_NORMS,
    Dimensions,
    always,
    bare_norms,
    beside_attention,
    flag,
    hidden_norms,
    never,
    no_norms,
    plain_mlp,
    where,
)
from shardwise.catalog.family import BIASED_FINAL_NORM, EQUAL_HEADS, Family
from shardwise.spec.model import Matrix
from shardwise.spec.outer_names import OuterNames

_GPT_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
}
_GPT_ALIASES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_GPT2: dict[str, Any] = {
    **EQUAL_HEADS,
    "vocab_size": 50257,
    "hidden_size": 768,
    "intermediate_size": None,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "hidden_act": "gelu_new",
    "tie_word_embeddings": True,
}
_GPT_NAMES = OuterNames(
    embedding="transformer.wte", final_norm="transformer.ln_f", blocks="transformer.h", positions="transformer.wpe"
)
_GPT2_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}


def _one_key_value_head(d: Dimensions) -> Dimensions:
    return replace(d, kv_heads=1) if d.flags["multi_query"] else d


def _opt_projections(d: Dimensions) -> tuple[Matrix, ...]:
    """Into and out of the width of the blocks, where the embedding has another."""
    width = d.optional["word_embed_proj_dim"] or d.hidden
    if width == d.hidden:
        return ()
    return (
        Matrix(name="project_out", rows=width, columns=d.hidden),
        Matrix(name="project_in", rows=d.hidden, columns=width),
    )


def _opt_has_final_norm(d: Dimensions) -> bool:
    return d.flags["do_layer_norm_before"] and not d.flags["_remove_final_layer_norm"]


#: model_type -> its rules.
GPT: dict[str, Family] = {
    "gpt_neox": Family(
        defaults={
            **EQUAL_HEADS,
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
        parallel=flag("use_parallel_residual"),
        attention=fused("attention", "query_key_value", "dense", bias=flag("attention_bias")),
        mlp=plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=always),
        norms=LAYER_NORMS,
        partial_rotary=True,
        mlp_kind="plain",
        norm_kind="layer",
        names=OuterNames(
            embedding="gpt_neox.embed_in", final_norm="gpt_neox.final_layer_norm", blocks="gpt_neox.layers"
        ),
        final_norm=BIASED_FINAL_NORM,
    ),
    "gpt2": Family(
        defaults={**_GPT2, **_GPT2_DROPOUT},
        keys=_GPT_KEYS,
        aliases=_GPT_ALIASES,
        attention=fused("attn", "c_attn", "c_proj", bias=always, transposed=True),
        mlp=plain_mlp("mlp.c_fc", "mlp.c_proj", bias=always, transposed=True),
        norms=hidden_norms("ln_1", "ln_2", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        names=_GPT_NAMES,
        final_norm=BIASED_FINAL_NORM,
        position_offset=0,
    ),
    "gpt_bigcode": Family(
        defaults={**_GPT2, **_GPT2_DROPOUT, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        keys=_GPT_KEYS,
        aliases=_GPT_ALIASES,
        refine=_one_key_value_head,
        attention=fused("attn", "c_attn", "c_proj", bias=always),
        mlp=plain_mlp("mlp.c_fc", "mlp.c_proj", bias=always),
        norms=hidden_norms("ln_1", "ln_2", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        names=_GPT_NAMES,
        final_norm=BIASED_FINAL_NORM,
        position_offset=0,
    ),
    "gpt_neo": Family(
        defaults={
            **_GPT2,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "max_position_embeddings": 2048,
        },
        keys={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "hidden_act": "activation_function",
        },
        aliases=("num_hidden_layers", "num_attention_heads"),
        attention=separate(bias=never, output_bias=always, module="attn.attention", output="out_proj"),
        mlp=plain_mlp("mlp.c_fc", "mlp.c_proj", bias=always),
        norms=hidden_norms("ln_1", "ln_2", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        names=_GPT_NAMES,
        final_norm=BIASED_FINAL_NORM,
        position_offset=0,
        eager_attention=True,
    ),
    "gptj": Family(
        defaults={
            **_GPT2,
            "vocab_size": 50400,
            "hidden_size": 4096,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
        keys=_GPT_KEYS,
        aliases=_GPT_ALIASES,
        attention=separate(bias=never, module="attn", output="out_proj"),
        mlp=beside_attention(plain_mlp("mlp.fc_in", "mlp.fc_out", bias=always)),
        norms=hidden_norms("ln_1", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        names=replace(_GPT_NAMES, positions=None),
        final_norm=BIASED_FINAL_NORM,
        head_bias=always,
        parallel=always,
        partial_rotary=True,
        eager_attention=True,
    ),
    "opt": Family(
        defaults={
            **EQUAL_HEADS,
            "vocab_size": 50272,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 2048,
            "hidden_act": "relu",
            "tie_word_embeddings": True,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "word_embed_proj_dim": None,
            "layerdrop": 0.0,
            "dropout": 0.1,
        },
        keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        optional=("word_embed_proj_dim",),
        attention=separate(bias=flag("enable_bias"), output="out_proj"),
        mlp=plain_mlp("fc1", "fc2", bias=flag("enable_bias")),
        norms=where(
            flag("layer_norm_elementwise_affine"),
            hidden_norms("self_attn_layer_norm", "final_layer_norm", bias=True),
            bare_norms("self_attn_layer_norm", "final_layer_norm"),
        ),
        mlp_kind="plain",
        norm_kind="layer",
        names=OuterNames(
            embedding="model.decoder.embed_tokens",
            final_norm="model.decoder.final_layer_norm",
            blocks="model.decoder.layers",
            positions="model.decoder.embed_positions",
        ),
        final_norm=where(
            _opt_has_final_norm,
            where(flag("layer_norm_elementwise_affine"), BIASED_FINAL_NORM, bare_norms("norm")),
            no_norms,
        ),
        position_offset=2,
        outer_matrices=_opt_projections,
        embedding_key="word_embed_proj_dim",
    ),
    "bloom": Family(
        # Its positions are a bias of attention, without an end; sequences were of 2,048 tokens.
        defaults={
            **EQUAL_HEADS,
            "vocab_size": 250880,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        },
        keys={
            "hidden_size": "n_embed",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
        },
        aliases=("num_hidden_layers", "num_attention_heads"),
        fallbacks=("hidden_size", "max_position_embeddings"),
        attention=fused("self_attention", "query_key_value", "dense", bias=always),
        mlp=plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=always),
        norms=LAYER_NORMS,
        mlp_kind="plain",
        norm_kind="layer",
        names=replace(_GPT_NAMES, embedding="transformer.word_embeddings", positions=None),
        final_norm=BIASED_FINAL_NORM,
        outer_norms=hidden_norms("word_embeddings_layernorm", bias=True),
        activation="gelu_pytorch_tanh",
        eager_attention=True,
    ),
}
