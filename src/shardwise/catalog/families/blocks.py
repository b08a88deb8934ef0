"""The MLPs and norms of a block, by kind of transformers' code, under the names of the Hugging Face module tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from shardwise.spec.model.shape import Matrix, Norm, Reads


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The checked values of a config.json that a family's rules read; see `Family` for the keys in the mappings."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    flags: Mapping[str, bool]
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    optional: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    layer_lists: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict[str, tuple[int, ...] | None])

    @property
    def query(self) -> int:
        """Output features of the query projection."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Output features of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim


Matrices = Callable[[Dimensions], tuple[Matrix, ...]]
Norms = Callable[[Dimensions], tuple[Norm, ...]]
Bias = Callable[[Dimensions], bool]


def always(_: Dimensions) -> bool:
    """True: what the family always has."""
    return True


def never(_: Dimensions) -> bool:
    """False: what the family never has."""
    return False


def flag(name: str) -> Bias:
    """What a key of the configuration says."""
    return lambda d: d.flags[name]


def mlp_bias(d: Dimensions) -> bool:
    """What `mlp_bias` says, where the family reads it."""
    return d.flags.get("mlp_bias", False)


def nothing(_: Dimensions) -> tuple[()]:
    """No matrices, or no norms."""
    return ()


def gated(
    prefix: str, *, width: Callable[[Dimensions], int], bias: Bias = never, reads: Reads = "mlp_input"
) -> Matrices:
    """Gate, up and down of some width, under a module's name."""
    return lambda d: (
        Matrix(name=f"{prefix}.gate_proj", rows=width(d), columns=d.hidden, bias=bias(d), reads=reads),
        Matrix(name=f"{prefix}.up_proj", rows=width(d), columns=d.hidden, bias=bias(d), reads=reads),
        Matrix(name=f"{prefix}.down_proj", rows=d.hidden, columns=width(d), bias=bias(d), reads="mlp_product"),
    )


def gated_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate, up and down; with a parallel residual they read what attention reads."""
    reads = "attention_input" if d.flags.get("use_parallel_residual", False) else "mlp_input"
    return gated("mlp", width=lambda d: d.intermediate, bias=mlp_bias, reads=reads)(d)


def phi3_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate and up in one matrix, and down."""
    return (
        Matrix(name="mlp.gate_up_proj", rows=2 * d.intermediate, columns=d.hidden, reads="mlp_input"),
        Matrix(name="mlp.down_proj", rows=d.hidden, columns=d.intermediate, reads="mlp_product"),
    )


def plain_mlp(up: str, down: str, *, bias: Bias, transposed: bool = False) -> Matrices:
    """Two matrices with an activation between them."""

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        first = Matrix(name=up, rows=d.intermediate, columns=d.hidden, bias=bias(d), reads="mlp_input")
        second = Matrix(name=down, rows=d.hidden, columns=d.intermediate, bias=bias(d), reads="mlp_product")
        return replace(first, transposed=transposed), replace(second, transposed=transposed)

    return matrices


def beside_attention(mlp: Matrices, *, where: Bias = always) -> Matrices:
    """An MLP that reads the tensor that attention reads."""

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        if not where(d):
            return mlp(d)
        return tuple(replace(m, reads="attention_input") if m.reads == "mlp_input" else m for m in mlp(d))

    return matrices


def hidden_norms(*names: str, bias: bool = False) -> Norms:
    """Norms over the whole width."""
    return lambda d: tuple(Norm(name=name, size=d.hidden, width=d.hidden, bias=bias) for name in names)


def bare_norms(*names: str) -> Norms:
    """Norms over the whole width that have no weight."""
    return lambda d: tuple(Norm(name=name, size=0, width=d.hidden) for name in names)


def with_head_norms(norms: Norms, *, query: str = "q_norm", key: str = "k_norm") -> Norms:
    """With a norm over each head of queries and of keys."""
    return lambda d: (
        *norms(d),
        Norm(name=f"self_attn.{query}", size=d.head_dim, width=d.query),
        Norm(name=f"self_attn.{key}", size=d.head_dim, width=d.key_value),
    )


def with_whole_norms(norms: Norms) -> Norms:
    """With a norm over all queries and one over all keys."""
    return lambda d: (
        Norm(name="self_attn.q_norm", size=d.query, width=d.query),
        Norm(name="self_attn.k_norm", size=d.key_value, width=d.key_value),
        *norms(d),
    )


def where(condition: Bias, then: Norms, otherwise: Norms) -> Norms:
    """One or the other, by the configuration."""
    return lambda d: then(d) if condition(d) else otherwise(d)


LLAMA_NORMS = hidden_norms("input_layernorm", "post_attention_layernorm")
LAYER_NORMS = hidden_norms("input_layernorm", "post_attention_layernorm", bias=True)
POST_NORMS = hidden_norms("post_attention_layernorm", "post_feedforward_layernorm")
GEMMA2_NORMS = hidden_norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
GLM4_NORMS = hidden_norms(
    "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"
)


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


def latent_norms(d: Dimensions) -> tuple[Norm, ...]:
    """LLaMA's, and the norms of the latents."""
    rank, latent = d.optional["q_lora_rank"], d.numbers["kv_lora_rank"]
    query = (Norm(name="self_attn.q_a_layernorm", size=rank, width=rank),) if rank else ()
    return (*LLAMA_NORMS(d), *query, Norm(name="self_attn.kv_a_layernorm", size=latent, width=latent))


LLAMA_ATTENTION = separate(bias=flag("attention_bias"))
UNBIASED_ATTENTION = separate(bias=never)
QWEN2_ATTENTION = separate(bias=always, output_bias=never)
GLM_ATTENTION = separate(bias=flag("attention_bias"), output_bias=never)


def windowed_layers(layer_types: Any, *, every: int, layers: int) -> int | None:
    """How many blocks' attention has the window, by the listed kinds, else all but every n-th; None for all."""
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
