"""The matrices of a block's attention, by kind of transformers' code, and how many blocks have a sliding window."""

from __future__ import annotations

from typing import Any, cast

from shardwise.catalog.blocks import Bias, Dimensions, Matrices, Norms, always, flag, never
from shardwise.spec.model import Matrix, Norm


def separate(
    *, bias: Bias, output_bias: Bias | None = None, module: str = "self_attn", output: str = "o_proj"
) -> Matrices:
    """One projection each for queries, keys and values, and one for the output."""
    output_bias = output_bias or bias

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        return (
            Matrix(name=f"{module}.q_proj", rows=d.query, columns=d.hidden, bias=bias(d)),
            Matrix(name=f"{module}.k_proj", rows=d.key_value, columns=d.hidden, bias=bias(d)),
            Matrix(name=f"{module}.v_proj", rows=d.key_value, columns=d.hidden, bias=bias(d)),
            Matrix(
                name=f"{module}.{output}", rows=d.hidden, columns=d.query, bias=output_bias(d), reads="attention_output"
            ),
        )

    return matrices


def fused(module: str, qkv: str, output: str, *, bias: Bias, transposed: bool = False) -> Matrices:
    """One projection for queries, keys and values together, and one for the output."""

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        return (
            Matrix(
                name=f"{module}.{qkv}",
                rows=d.query + 2 * d.key_value,
                columns=d.hidden,
                bias=bias(d),
                transposed=transposed,
            ),
            Matrix(
                name=f"{module}.{output}",
                rows=d.hidden,
                columns=d.query,
                bias=bias(d),
                reads="attention_output",
                transposed=transposed,
            ),
        )

    return matrices


def latent_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Queries, keys and values from latents of low rank (DeepSeek-V2, 2024, section 2.1)."""
    bias, rank = d.flags["attention_bias"], d.optional["q_lora_rank"]
    latent, values = d.numbers["kv_lora_rank"], d.numbers["v_head_dim"]
    expanded = d.heads * (d.numbers["qk_nope_head_dim"] + values)
    queries = (Matrix(name="self_attn.q_proj", rows=d.query, columns=d.hidden),)
    if rank:
        queries = (
            Matrix(name="self_attn.q_a_proj", rows=rank, columns=d.hidden, bias=bias),
            Matrix(name="self_attn.q_b_proj", rows=d.query, columns=rank, reads="query_latent"),
        )
    return (
        *queries,
        Matrix(
            name="self_attn.kv_a_proj_with_mqa",
            rows=latent + d.numbers["qk_rope_head_dim"],
            columns=d.hidden,
            bias=bias,
        ),
        Matrix(name="self_attn.kv_b_proj", rows=expanded, columns=latent, reads="key_value_latent"),
        Matrix(name="self_attn.o_proj", rows=d.hidden, columns=d.heads * values, bias=bias, reads="attention_output"),
    )


def with_latent_norms(norms: Norms) -> Norms:
    """With the norms of the latents."""

    def all_norms(d: Dimensions) -> tuple[Norm, ...]:
        rank, latent = d.optional["q_lora_rank"], d.numbers["kv_lora_rank"]
        query = (Norm(name="self_attn.q_a_layernorm", size=rank, width=rank),) if rank else ()
        return (*norms(d), *query, Norm(name="self_attn.kv_a_layernorm", size=latent, width=latent))

    return all_norms


LLAMA_ATTENTION = separate(bias=flag("attention_bias"))
UNBIASED_ATTENTION = separate(bias=never)
QWEN2_ATTENTION = separate(bias=always, output_bias=never)
GLM_ATTENTION = separate(bias=flag("attention_bias"), output_bias=never)


def windowed_layers(layer_types: Any, *, every: int, layers: int) -> int | None:
    """How many of `layers` blocks' attention has the window, by the listed kinds, else all but every n-th; None for
    all."""
    if isinstance(layer_types, list):
        listed = cast(list[Any], layer_types)[:layers]
        windowed = sum(kind != "full_attention" for kind in listed)
        return None if windowed == layers else windowed
    return layers - layers // every if every else None


def from_a_layer_on(d: Dimensions) -> int:
    """All from `max_window_layers` on, as in Qwen2 and Qwen3."""
    return max(0, d.layers - (d.optional["max_window_layers"] or 0))


def every_other_up_to_a_layer(d: Dimensions) -> int:
    """Every other block below `max_window_layers`, as in Qwen2-MoE."""
    return (min(d.layers, d.optional["max_window_layers"] or 0) + 1) // 2


def without_rotation(d: Dimensions) -> int:
    """Blocks without rotary positions, as in SmolLM3: where `no_rope_layers` has 0, else every n-th."""
    listed = d.layer_lists["no_rope_layers"]
    if listed is None:
        return d.layers // d.numbers["no_rope_layer_interval"]
    return sum(not rotated for rotated in listed[: d.layers])
