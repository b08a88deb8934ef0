"""The matrices and norms of a block, as each kind of transformers' code builds them from a configuration's dimensions.

Names are those of the Hugging Face module tree, so that LoRA targets mean the same here and in PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.spec.model import Matrix, Norm


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The checked values of a config.json that a family's rules read.

    Attributes:
        flags: boolean keys by name, defaults filled in.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    flags: Mapping[str, bool]

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


def _projections(d: Dimensions, *, qkv_bias: bool, output_bias: bool) -> tuple[Matrix, ...]:
    return (
        Matrix(name="self_attn.q_proj", rows=d.query, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.k_proj", rows=d.key_value, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.v_proj", rows=d.key_value, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.o_proj", rows=d.hidden, columns=d.query, bias=output_bias, reads="attention_output"),
    )


def attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Separate projections; `attention_bias` gives all four a bias."""
    bias = d.flags.get("attention_bias", False)
    return _projections(d, qkv_bias=bias, output_bias=bias)


def qwen2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Separate projections; queries, keys and values always have a bias."""
    return _projections(d, qkv_bias=True, output_bias=False)


def stablelm_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Separate projections; `use_qkv_bias` gives the first three a bias."""
    return _projections(d, qkv_bias=d.flags["use_qkv_bias"], output_bias=False)


def starcoder2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Separate projections; `use_bias` gives all four a bias."""
    return _projections(d, qkv_bias=d.flags["use_bias"], output_bias=d.flags["use_bias"])


def phi3_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """One projection for queries, keys and values."""
    return (
        Matrix(name="self_attn.qkv_proj", rows=d.query + 2 * d.key_value, columns=d.hidden),
        Matrix(name="self_attn.o_proj", rows=d.hidden, columns=d.query, reads="attention_output"),
    )


def gpt2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """One projection for queries, keys and values, stored transposed."""
    return (
        Matrix(name="attn.c_attn", rows=3 * d.hidden, columns=d.hidden, bias=True, transposed=True),
        Matrix(
            name="attn.c_proj", rows=d.hidden, columns=d.hidden, bias=True, reads="attention_output", transposed=True
        ),
    )


def gpt_neox_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """One projection for queries, keys and values of as many heads."""
    bias = d.flags["attention_bias"]
    return (
        Matrix(name="attention.query_key_value", rows=3 * d.hidden, columns=d.hidden, bias=bias),
        Matrix(name="attention.dense", rows=d.hidden, columns=d.hidden, bias=bias, reads="attention_output"),
    )


def gated_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate, up and down; under a parallel residual they read what attention reads."""
    bias = d.flags.get("mlp_bias", False)
    reads = "attention_input" if d.flags.get("use_parallel_residual", False) else "mlp_input"
    return (
        Matrix(name="mlp.gate_proj", rows=d.intermediate, columns=d.hidden, bias=bias, reads=reads),
        Matrix(name="mlp.up_proj", rows=d.intermediate, columns=d.hidden, bias=bias, reads=reads),
        Matrix(name="mlp.down_proj", rows=d.hidden, columns=d.intermediate, bias=bias, reads="mlp_product"),
    )


def phi3_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate and up in one matrix, and down."""
    return (
        Matrix(name="mlp.gate_up_proj", rows=2 * d.intermediate, columns=d.hidden, reads="mlp_input"),
        Matrix(name="mlp.down_proj", rows=d.hidden, columns=d.intermediate, reads="mlp_product"),
    )


def plain_mlp(up: str, down: str, *, bias: Callable[[Dimensions], bool], transposed: bool = False) -> Matrices:
    """Two matrices with an activation between them."""

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        return (
            Matrix(
                name=f"mlp.{up}",
                rows=d.intermediate,
                columns=d.hidden,
                bias=bias(d),
                reads="mlp_input",
                transposed=transposed,
            ),
            Matrix(
                name=f"mlp.{down}",
                rows=d.hidden,
                columns=d.intermediate,
                bias=bias(d),
                reads="mlp_product",
                transposed=transposed,
            ),
        )

    return matrices


def hidden_norms(*names: str, bias: bool = False) -> Norms:
    """Norms over the whole width."""
    return lambda d: tuple(Norm(name=name, size=d.hidden, width=d.hidden, bias=bias) for name in names)


def qwen3_norms(d: Dimensions) -> tuple[Norm, ...]:
    """As LLaMA, and one over each head of queries and keys."""
    return (
        *LLAMA_NORMS(d),
        Norm(name="self_attn.q_norm", size=d.head_dim, width=d.query),
        Norm(name="self_attn.k_norm", size=d.head_dim, width=d.key_value),
    )


def olmo2_norms(d: Dimensions) -> tuple[Norm, ...]:
    """Over whole queries and keys, and behind attention and the MLP."""
    return (
        Norm(name="self_attn.q_norm", size=d.query, width=d.query),
        Norm(name="self_attn.k_norm", size=d.key_value, width=d.key_value),
        *hidden_norms("post_attention_layernorm", "post_feedforward_layernorm")(d),
    )


def stablelm_norms(d: Dimensions) -> tuple[Norm, ...]:
    """One or two over the width, and one of its own for each head where `qk_layernorm` says so."""
    names = (
        ("input_layernorm",) if d.flags["use_parallel_residual"] else ("input_layernorm", "post_attention_layernorm")
    )
    norms = hidden_norms(*names, bias=True)(d)
    if not d.flags["qk_layernorm"]:
        return norms
    return (
        *norms,
        Norm(name="self_attn.q_layernorm.norms", size=d.head_dim, width=d.query, count=d.heads),
        Norm(name="self_attn.k_layernorm.norms", size=d.head_dim, width=d.key_value, count=d.kv_heads),
    )


LLAMA_NORMS = hidden_norms("input_layernorm", "post_attention_layernorm")
LAYER_NORMS = hidden_norms("input_layernorm", "post_attention_layernorm", bias=True)
GEMMA2_NORMS = hidden_norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
