"""The MLPs and norms of a block, by kind of transformers' code, under the names of the Hugging Face module tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardwise.spec.model import Matrix, Norm, Reads


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


def no_matrices(_: Dimensions) -> tuple[Matrix, ...]:
    """None."""
    return ()


def no_norms(_: Dimensions) -> tuple[Norm, ...]:
    """None."""
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
