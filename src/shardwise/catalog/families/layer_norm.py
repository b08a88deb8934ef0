"""GPT-2 and other families with layer norms and, most of them, MLPs of two matrices."""

from dataclasses import replace
from functools import partial

from shardwise.catalog.families import blocks
from shardwise.catalog.families.family import BIASED_FINAL_NORM, FINAL_NORM, Family
from shardwise.spec.model.shape import Matrix, Norm, OuterNames

_GPT_NAMES = OuterNames(
    embedding="transformer.wte", final_norm="transformer.ln_f", blocks="transformer.h", positions="transformer.wpe"
)
_LayerNorm = partial(Family, norms=blocks.LAYER_NORMS, final_norm=BIASED_FINAL_NORM)
_Gpt = partial(_LayerNorm, norms=blocks.hidden_norms("ln_1", "ln_2", bias=True), names=_GPT_NAMES)


def _one_key_value_head(d: blocks.Dimensions) -> blocks.Dimensions:
    return replace(d, kv_heads=1) if d.flags["multi_query"] else d


def _opt_projections(d: blocks.Dimensions) -> tuple[Matrix, ...]:
    """Between the embedding's width and the blocks', where they differ."""
    width = d.optional["word_embed_proj_dim"] or d.hidden
    if width == d.hidden:
        return ()
    return (Matrix("project_out", width, d.hidden), Matrix("project_in", d.hidden, width))


def _falcon_heads(d: blocks.Dimensions) -> blocks.Dimensions:
    """The new decoder has groups of heads; the old one key-value head, or one for each head."""
    if d.flags["new_decoder_architecture"]:
        return replace(d, kv_heads=d.optional["num_kv_heads"] or d.heads)
    return _one_key_value_head(d)


def _gptj_misfit(d: blocks.Dimensions) -> str:
    rotated = d.optional["rotary_dim"] or d.head_dim
    odd = rotated % 2 or rotated > d.head_dim
    return f"rotary_dim is {rotated}; expected an even number up to the heads' width, {d.head_dim}" if odd else ""


def _falcon_misfit(d: blocks.Dimensions) -> str:
    old, own = not d.flags["new_decoder_architecture"], d.optional["num_kv_heads"] or d.heads
    if old and not d.flags["multi_query"] and own != d.heads:
        return f"num_kv_heads is {own}; expected {d.heads}, as multi_query and new_decoder_architecture are false"
    norms = d.optional["num_ln_in_parallel_attn"]
    lacks = norms == 2 and old and d.flags["parallel_attn"]
    return "num_ln_in_parallel_attn is 2, which its code runs in the new decoder architecture alone" if lacks else ""


def _falcon_parallel(d: blocks.Dimensions) -> bool:
    return d.flags["new_decoder_architecture"] or d.flags["parallel_attn"]


def _falcon_norms(d: blocks.Dimensions) -> tuple[Norm, ...]:
    if not d.flags["parallel_attn"]:
        return blocks.LAYER_NORMS(d)
    usual = 2 if d.flags["new_decoder_architecture"] else 1
    count = d.optional["num_ln_in_parallel_attn"] or usual
    return blocks.hidden_norms(*(("ln_attn", "ln_mlp") if count == 2 else ("input_layernorm",)), bias=True)(d)


def _stablelm_norms(d: blocks.Dimensions) -> tuple[Norm, ...]:
    parallel = d.flags["use_parallel_residual"]
    norms = (blocks.hidden_norms("input_layernorm", bias=True) if parallel else blocks.LAYER_NORMS)(d)
    if not d.flags["qk_layernorm"]:
        return norms
    return (
        *norms,
        Norm("self_attn.q_layernorm.norms", d.head_dim, d.query, count=d.heads),
        Norm("self_attn.k_layernorm.norms", d.head_dim, d.key_value, count=d.kv_heads),
    )


_PHI_NORM = blocks.hidden_norms("input_layernorm", bias=True)
_PHI_HEADS = blocks.with_head_norms(_PHI_NORM, query="q_layernorm", key="k_layernorm", bias=True)
_OPT_AFFINE: blocks.Bias = blocks.flag("layer_norm_elementwise_affine")
_OPT_NORMS = ("self_attn_layer_norm", "final_layer_norm")

#: model_type -> its rules.
LAYER_NORM: dict[str, Family] = {
    "gpt_neox": _LayerNorm(
        parallel=blocks.flag("use_parallel_residual"),
        attention=blocks.fused("attention", "query_key_value", "dense", bias=blocks.flag("attention_bias")),
        mlp=blocks.plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=blocks.always),
        names=OuterNames(
            embedding="gpt_neox.embed_in", final_norm="gpt_neox.final_layer_norm", blocks="gpt_neox.layers"
        ),
    ),
    "gpt2": _Gpt(
        attention=blocks.fused("attn", "c_attn", "c_proj", bias=blocks.always, transposed=True),
        mlp=blocks.plain_mlp("mlp.c_fc", "mlp.c_proj", bias=blocks.always, transposed=True),
    ),
    "gpt_bigcode": _Gpt(
        refine=_one_key_value_head,
        attention=blocks.fused("attn", "c_attn", "c_proj", bias=blocks.always),
        mlp=blocks.plain_mlp("mlp.c_fc", "mlp.c_proj", bias=blocks.always),
    ),
    "gpt_neo": _Gpt(
        attention=blocks.separate(
            bias=blocks.never, output_bias=blocks.always, module="attn.attention", output="out_proj"
        ),
        mlp=blocks.plain_mlp("mlp.c_fc", "mlp.c_proj", bias=blocks.always),
    ),
    "gptj": _Gpt(
        misfit=_gptj_misfit,
        attention=blocks.separate(bias=blocks.never, module="attn", output="out_proj"),
        mlp=blocks.beside_attention(blocks.plain_mlp("mlp.fc_in", "mlp.fc_out", bias=blocks.always)),
        norms=blocks.hidden_norms("ln_1", bias=True),
        names=replace(_GPT_NAMES, positions=None),
        head_bias=blocks.always,
        parallel=blocks.always,
    ),
    "opt": _LayerNorm(
        attention=blocks.separate(bias=blocks.flag("enable_bias"), output="out_proj"),
        mlp=blocks.plain_mlp("fc1", "fc2", bias=blocks.flag("enable_bias")),
        norms=blocks.where(_OPT_AFFINE, blocks.hidden_norms(*_OPT_NORMS, bias=True), blocks.bare_norms(*_OPT_NORMS)),
        names=OuterNames(
            embedding="model.decoder.embed_tokens",
            final_norm="model.decoder.final_layer_norm",
            blocks="model.decoder.layers",
            positions="model.decoder.embed_positions",
        ),
        final_norm=blocks.where(
            lambda d: d.flags["do_layer_norm_before"] and not d.flags["_remove_final_layer_norm"],
            blocks.where(_OPT_AFFINE, BIASED_FINAL_NORM, blocks.bare_norms("norm")),
            blocks.nothing,
        ),
        outer_matrices=_opt_projections,
    ),
    # Its positions are a bias of attention without an end; it was trained on 2,048 tokens.
    "bloom": _LayerNorm(
        attention=blocks.fused("self_attention", "query_key_value", "dense", bias=blocks.always),
        mlp=blocks.plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=blocks.always),
        names=replace(_GPT_NAMES, embedding="transformer.word_embeddings", positions=None),
        outer_norms=blocks.hidden_norms("word_embeddings_layernorm", bias=True),
    ),
    "phi": _LayerNorm(
        attention=blocks.separate(bias=blocks.always, output="dense"),
        mlp=blocks.beside_attention(blocks.plain_mlp("mlp.fc1", "mlp.fc2", bias=blocks.always)),
        norms=blocks.where(blocks.flag("qk_layernorm"), _PHI_HEADS, _PHI_NORM),
        even_heads=blocks.flag("qk_layernorm"),
        names=OuterNames(final_norm="model.final_layernorm"),
        head_bias=blocks.always,
        parallel=blocks.always,
    ),
    "stablelm": _LayerNorm(
        parallel=blocks.flag("use_parallel_residual"),
        attention=blocks.separate(bias=blocks.flag("use_qkv_bias"), output_bias=blocks.never),
        norms=_stablelm_norms,
    ),
    "starcoder2": _LayerNorm(
        attention=blocks.separate(bias=blocks.flag("use_bias")),
        mlp=blocks.plain_mlp("mlp.c_fc", "mlp.c_proj", bias=blocks.flag("use_bias")),
    ),
    "nemotron": _LayerNorm(mlp=blocks.plain_mlp("mlp.up_proj", "mlp.down_proj", bias=blocks.flag("mlp_bias"))),
    "falcon": _LayerNorm(
        refine=_falcon_heads,
        misfit=_falcon_misfit,
        attention=blocks.fused("self_attention", "query_key_value", "dense", bias=blocks.flag("bias")),
        mlp=blocks.beside_attention(
            blocks.plain_mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=blocks.flag("bias")),
            where=lambda d: _falcon_parallel(d) and len(_falcon_norms(d)) == 1,
        ),
        norms=_falcon_norms,
        names=replace(_GPT_NAMES, embedding="transformer.word_embeddings", positions=None),
        parallel=_falcon_parallel,
    ),
    "mpt": _LayerNorm(
        attention=blocks.fused("attn", "Wqkv", "out_proj", bias=blocks.never),
        mlp=blocks.plain_mlp("ffn.up_proj", "ffn.down_proj", bias=blocks.never),
        norms=blocks.hidden_norms("norm_1", "norm_2"),
        names=OuterNames(embedding="transformer.wte", final_norm="transformer.norm_f", blocks="transformer.blocks"),
        final_norm=FINAL_NORM,
    ),
}
