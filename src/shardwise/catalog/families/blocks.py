"""The MLPs and norms of a block, under the names of the Hugging Face module tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardwise.spec.model.shape import Matrix, Norm, Reads


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The checked values of a config.json that a family's rules read."""

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
        Matrix(f"{prefix}.gate_proj", width(d), d.hidden, bias=bias(d), reads=reads),
        Matrix(f"{prefix}.up_proj", width(d), d.hidden, bias=bias(d), reads=reads),
        Matrix(f"{prefix}.down_proj", d.hidden, width(d), bias=bias(d), reads="mlp_product"),
    )


def gated_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate, up and down; with a parallel residual they read what attention reads."""
    reads = "attention_input" if d.flags.get("use_parallel_residual", False) else "mlp_input"
    return gated("mlp", width=lambda d: d.intermediate, bias=mlp_bias, reads=reads)(d)


def phi3_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    """Gate and up in one matrix, and down."""
    return (
        Matrix("mlp.gate_up_proj", 2 * d.intermediate, d.hidden, reads="mlp_input"),
        Matrix("mlp.down_proj", d.hidden, d.intermediate, reads="mlp_product"),
    )


def plain_mlp(up: str, down: str, *, bias: Bias, transposed: bool = False) -> Matrices:
    """Two matrices with an activation between them."""
    return lambda d: (
        Matrix(up, d.intermediate, d.hidden, bias=bias(d), reads="mlp_input", transposed=transposed),
        Matrix(down, d.hidden, d.intermediate, bias=bias(d), reads="mlp_product", transposed=transposed),
    )


def beside_attention(mlp: Matrices, *, where: Bias = always) -> Matrices:
    """An MLP that reads the tensor that attention reads."""

    return lambda d: tuple(
        replace(m, reads="attention_input") if m.reads == "mlp_input" and where(d) else m for m in mlp(d)
    )


def hidden_norms(*names: str, bias: bool = False) -> Norms:
    """Norms over the whole width."""
    return lambda d: tuple(Norm(name, d.hidden, d.hidden, bias=bias) for name in names)


def bare_norms(*names: str) -> Norms:
    """Norms over the whole width that have no weight."""
    return lambda d: tuple(Norm(name, 0, d.hidden) for name in names)


def with_head_norms(norms: Norms, *, query: str = "q_norm", key: str = "k_norm", bias: bool = False) -> Norms:
    """With a norm over each head of queries and of keys."""
    return lambda d: (
        *norms(d),
        Norm(f"self_attn.{query}", d.head_dim, d.query, bias=bias),
        Norm(f"self_attn.{key}", d.head_dim, d.key_value, bias=bias),
    )


def with_whole_norms(norms: Norms) -> Norms:
    """With a norm over all queries and one over all keys."""
    return lambda d: (
        Norm("self_attn.q_norm", d.query, d.query),
        Norm("self_attn.k_norm", d.key_value, d.key_value),
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
    last = output_bias or bias
    return lambda d: (
        Matrix(f"{module}.q_proj", d.query, d.hidden, bias=bias(d)),
        Matrix(f"{module}.k_proj", d.key_value, d.hidden, bias=bias(d)),
        Matrix(f"{module}.v_proj", d.key_value, d.hidden, bias=bias(d)),
        Matrix(f"{module}.{output}", d.hidden, d.query, bias=last(d), reads="attention_output"),
    )


def fused(module: str, qkv: str, output: str, *, bias: Bias, transposed: bool = False) -> Matrices:
    """One projection for queries, keys and values together, and one for the output."""
    reads: Reads = "attention_output"
    return lambda d: (
        Matrix(f"{module}.{qkv}", d.query + 2 * d.key_value, d.hidden, bias=bias(d), transposed=transposed),
        Matrix(f"{module}.{output}", d.hidden, d.query, bias=bias(d), reads=reads, transposed=transposed),
    )


def latent_attention(d: Dimensions) -> tuple[Matrix, ...]:
    """Queries, keys and values from latents of low rank (DeepSeek-V2, 2024, section 2.1)."""
    bias, rank = d.flags["attention_bias"], d.optional["q_lora_rank"]
    latent, values = d.numbers["kv_lora_rank"], d.numbers["v_head_dim"]
    expanded = d.heads * (d.numbers["qk_nope_head_dim"] + values)
    queries = (Matrix("self_attn.q_proj", d.query, d.hidden),)
    if rank:
        queries = (
            Matrix("self_attn.q_a_proj", rank, d.hidden, bias=bias),
            Matrix("self_attn.q_b_proj", d.query, rank, reads="query_latent"),
        )
    return (
        *queries,
        Matrix("self_attn.kv_a_proj_with_mqa", latent + d.numbers["qk_rope_head_dim"], d.hidden, bias=bias),
        Matrix("self_attn.kv_b_proj", expanded, latent, reads="key_value_latent"),
        Matrix("self_attn.o_proj", d.hidden, d.heads * values, bias=bias, reads="attention_output"),
    )


def latent_norms(d: Dimensions) -> tuple[Norm, ...]:
    """LLaMA's, and the norms of the latents."""
    rank, latent = d.optional["q_lora_rank"], d.numbers["kv_lora_rank"]
    query = (Norm("self_attn.q_a_layernorm", rank, rank),) if rank else ()
    return (*LLAMA_NORMS(d), *query, Norm("self_attn.kv_a_layernorm", latent, latent))


LLAMA_ATTENTION = separate(bias=flag("attention_bias"))
UNBIASED_ATTENTION = separate(bias=never)
QWEN2_ATTENTION = separate(bias=always, output_bias=never)
GLM_ATTENTION = separate(bias=flag("attention_bias"), output_bias=never)


def from_a_layer_on(d: Dimensions) -> int:
    """All from `max_window_layers` on, as in Qwen2 and Qwen3."""
    return max(0, d.layers - (d.optional["max_window_layers"] or 0))


def every_other_up_to_a_layer(d: Dimensions) -> int:
    """Every other block below `max_window_layers`, as in Qwen2-MoE."""
    return (min(d.layers, d.optional["max_window_layers"] or 0) + 1) // 2


def without_rotation(d: Dimensions) -> int:
    """Blocks without rotary positions: where `no_rope_layers` has 0, else every n-th."""
    listed = d.layer_lists["no_rope_layers"]
    if listed is None:
        return d.layers // d.numbers["no_rope_layer_interval"]
    return sum(not rotated for rotated in listed[: d.layers])
