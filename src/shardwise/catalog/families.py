"""How each family of models builds its blocks: `config.json` keys to matrices and norms, one table row per family.

The defaults are those of transformers' configuration classes (checked against them by the tests), because a
config.json leaves out what equals the default. Names are those of the Hugging Face module tree, so that LoRA targets
mean the same here and in PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.spec.model import Matrix, MlpKind, Norm, NormKind


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


@dataclass(frozen=True, kw_only=True)
class Family:
    """The rules of one `model_type`.

    Attributes:
        defaults: the keys this family reads, with what they are where config.json leaves them out. A None for
            `num_key_value_heads` means as many as heads, for `head_dim` hidden_size / heads.
        keys: this family's own names of the usual keys.
        norm_bias: its norms (the final one too) have biases.
        learned_positions: it has a table of position embeddings.
        partial_rotary: see ModelShape.
        optional_window: `sliding_window` counts only where `use_sliding_window` says so.
    """

    defaults: Mapping[str, Any]
    attention: Matrices
    mlp: Matrices
    norms: Norms
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    mlp_kind: MlpKind = "gated"
    norm_kind: NormKind = "rms"
    norm_bias: bool = False
    learned_positions: bool = False
    partial_rotary: bool = False
    optional_window: bool = False


def _projections(d: Dimensions, *, qkv_bias: bool, output_bias: bool) -> tuple[Matrix, ...]:
    return (
        Matrix(name="self_attn.q_proj", rows=d.query, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.k_proj", rows=d.key_value, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.v_proj", rows=d.key_value, columns=d.hidden, bias=qkv_bias),
        Matrix(name="self_attn.o_proj", rows=d.hidden, columns=d.query, bias=output_bias, reads="attention_output"),
    )


def _attention(d: Dimensions) -> tuple[Matrix, ...]:
    bias = d.flags.get("attention_bias", False)
    return _projections(d, qkv_bias=bias, output_bias=bias)


def _qwen2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    return _projections(d, qkv_bias=True, output_bias=False)


def _stablelm_attention(d: Dimensions) -> tuple[Matrix, ...]:
    return _projections(d, qkv_bias=d.flags["use_qkv_bias"], output_bias=False)


def _starcoder2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    return _projections(d, qkv_bias=d.flags["use_bias"], output_bias=d.flags["use_bias"])


def _phi3_attention(d: Dimensions) -> tuple[Matrix, ...]:
    return (
        Matrix(name="self_attn.qkv_proj", rows=d.query + 2 * d.key_value, columns=d.hidden),
        Matrix(name="self_attn.o_proj", rows=d.hidden, columns=d.query, reads="attention_output"),
    )


def _gpt2_attention(d: Dimensions) -> tuple[Matrix, ...]:
    return (
        Matrix(name="attn.c_attn", rows=3 * d.hidden, columns=d.hidden, bias=True, transposed=True),
        Matrix(
            name="attn.c_proj", rows=d.hidden, columns=d.hidden, bias=True, reads="attention_output", transposed=True
        ),
    )


def _gpt_neox_attention(d: Dimensions) -> tuple[Matrix, ...]:
    bias = d.flags["attention_bias"]
    return (
        Matrix(name="attention.query_key_value", rows=3 * d.hidden, columns=d.hidden, bias=bias),
        Matrix(name="attention.dense", rows=d.hidden, columns=d.hidden, bias=bias, reads="attention_output"),
    )


def _gated_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    bias = d.flags.get("mlp_bias", False)
    reads = "attention_input" if d.flags.get("use_parallel_residual", False) else "mlp_input"
    return (
        Matrix(name="mlp.gate_proj", rows=d.intermediate, columns=d.hidden, bias=bias, reads=reads),
        Matrix(name="mlp.up_proj", rows=d.intermediate, columns=d.hidden, bias=bias, reads=reads),
        Matrix(name="mlp.down_proj", rows=d.hidden, columns=d.intermediate, bias=bias, reads="mlp_product"),
    )


def _phi3_mlp(d: Dimensions) -> tuple[Matrix, ...]:
    return (
        Matrix(name="mlp.gate_up_proj", rows=2 * d.intermediate, columns=d.hidden, reads="mlp_input"),
        Matrix(name="mlp.down_proj", rows=d.hidden, columns=d.intermediate, reads="mlp_product"),
    )


def _plain_mlp(up: str, down: str, *, bias: Callable[[Dimensions], bool], transposed: bool = False) -> Matrices:
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


def _hidden_norms(*names: str, bias: bool = False) -> Norms:
    return lambda d: tuple(Norm(name=name, size=d.hidden, width=d.hidden, bias=bias) for name in names)


def _qwen3_norms(d: Dimensions) -> tuple[Norm, ...]:
    return (
        *_LLAMA_NORMS(d),
        Norm(name="self_attn.q_norm", size=d.head_dim, width=d.query),
        Norm(name="self_attn.k_norm", size=d.head_dim, width=d.key_value),
    )


def _olmo2_norms(d: Dimensions) -> tuple[Norm, ...]:
    return (
        Norm(name="self_attn.q_norm", size=d.query, width=d.query),
        Norm(name="self_attn.k_norm", size=d.key_value, width=d.key_value),
        *_hidden_norms("post_attention_layernorm", "post_feedforward_layernorm")(d),
    )


def _stablelm_norms(d: Dimensions) -> tuple[Norm, ...]:
    names = (
        ("input_layernorm",) if d.flags["use_parallel_residual"] else ("input_layernorm", "post_attention_layernorm")
    )
    norms = _hidden_norms(*names, bias=True)(d)
    if not d.flags["qk_layernorm"]:
        return norms
    return (
        *norms,
        Norm(name="self_attn.q_layernorm.norms", size=d.head_dim, width=d.query, count=d.heads),
        Norm(name="self_attn.k_layernorm.norms", size=d.head_dim, width=d.key_value, count=d.kv_heads),
    )


_LLAMA_NORMS = _hidden_norms("input_layernorm", "post_attention_layernorm")
_LAYER_NORMS = _hidden_norms("input_layernorm", "post_attention_layernorm", bias=True)
_GEMMA2_NORMS = _hidden_norms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)

_EQUAL_HEADS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_COMMON: dict[str, Any] = {**_EQUAL_HEADS, "num_key_value_heads": None, "head_dim": None}
_LLAMA: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "attention_bias": False,
}
_LLAMA_BIASES: dict[str, Any] = {**_LLAMA, "mlp_bias": False}
_QWEN: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
}
_GEMMA: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
}

#: model_type -> its rules.
FAMILIES: dict[str, Family] = {
    "llama": Family(defaults=_LLAMA_BIASES, attention=_attention, mlp=_gated_mlp, norms=_LLAMA_NORMS),
    "granite": Family(
        defaults={**_LLAMA_BIASES, "logits_scaling": 1.0}, attention=_attention, mlp=_gated_mlp, norms=_LLAMA_NORMS
    ),
    "mistral": Family(
        defaults={
            **_COMMON,
            "vocab_size": 32000,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        attention=_attention,
        mlp=_gated_mlp,
        norms=_LLAMA_NORMS,
    ),
    "qwen2": Family(
        defaults=_QWEN, attention=_qwen2_attention, mlp=_gated_mlp, norms=_LLAMA_NORMS, optional_window=True
    ),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128, "attention_bias": False},
        attention=_attention,
        mlp=_gated_mlp,
        norms=_qwen3_norms,
        optional_window=True,
    ),
    "smollm3": Family(
        defaults={
            **_LLAMA_BIASES,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
        },
        attention=_attention,
        mlp=_gated_mlp,
        norms=_LLAMA_NORMS,
        optional_window=True,
    ),
    "olmo2": Family(defaults={**_LLAMA, "vocab_size": 50304}, attention=_attention, mlp=_gated_mlp, norms=_olmo2_norms, norm_kind="gemma"),
    "phi3": Family(
        defaults={
            **_COMMON,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "sliding_window": None,
        },
        attention=_phi3_attention,
        mlp=_phi3_mlp,
        norms=_LLAMA_NORMS,
        partial_rotary=True,
    ),
    "gemma": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
        },
        attention=_attention,
        mlp=_gated_mlp,
        norms=_LLAMA_NORMS,
        norm_kind="gemma",
    ),
    "gemma2": Family(
        defaults={
            **_GEMMA,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        keys={"hidden_act": "hidden_activation"},
        attention=_attention,
        mlp=_gated_mlp,
        norms=_GEMMA2_NORMS,
        norm_kind="gemma",
    ),
    "stablelm": Family(
        defaults={
            **_EQUAL_HEADS,
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        attention=_stablelm_attention,
        mlp=_gated_mlp,
        norms=_stablelm_norms,
        partial_rotary=True,
        norm_kind="layer",
        norm_bias=True,
    ),
    "starcoder2": Family(
        defaults={
            **_COMMON,
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
        attention=_starcoder2_attention,
        mlp=_plain_mlp("c_fc", "c_proj", bias=lambda d: d.flags["use_bias"]),
        norms=_LAYER_NORMS,
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
    ),
    "gpt_neox": Family(
        defaults={
            **_EQUAL_HEADS,
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
        attention=_gpt_neox_attention,
        mlp=_plain_mlp("dense_h_to_4h", "dense_4h_to_h", bias=lambda _: True),
        norms=_LAYER_NORMS,
        partial_rotary=True,
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
    ),
    "gpt2": Family(
        defaults={
            **_EQUAL_HEADS,
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": None,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "hidden_act": "gelu_new",
            "tie_word_embeddings": True,
        },
        keys={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "hidden_act": "activation_function",
        },
        attention=_gpt2_attention,
        mlp=_plain_mlp("c_fc", "c_proj", bias=lambda _: True, transposed=True),
        norms=_hidden_norms("ln_1", "ln_2", bias=True),
        mlp_kind="plain",
        norm_kind="layer",
        norm_bias=True,
        learned_positions=True,
    ),
}
