"""What a family's row says, and the defaults that rows share.

The defaults are those of transformers' configuration classes (checked against them by the tests), because a
config.json leaves out what equals the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.catalog.blocks import Bias, Dimensions, Matrices, Norms, hidden_norms, never, no_matrices, no_norms
from shardwise.catalog.experts import Placement, everywhere
from shardwise.spec.model import MlpKind, NormKind
from shardwise.spec.outer_names import LLAMA_NAMES, OuterNames

FINAL_NORM = hidden_norms("norm")
BIASED_FINAL_NORM = hidden_norms("norm", bias=True)


def as_they_are(d: Dimensions) -> Dimensions:
    """Dimensions that mean what their keys say."""
    return d


#: Keys by which a family caps or scales its logits behind the head; such a head is not plain.
LOGIT_TRANSFORMS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "mup_width_scale",
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """The rules of one `model_type`.

    Attributes:
        defaults: the keys this family reads, with what they are where config.json leaves them out. A None for
            `num_key_value_heads` means as many as heads, for `head_dim` hidden_size / heads.
        keys: this family's own names of the usual keys, which are not read unless the next two name them.
        aliases: usual names that count too, and more than the own ones where a file states both.
        fallbacks: usual names that count where a file does not state the own ones.
        numbers: those of the keys that only its own rules read, as whole numbers from 1.
        optional: those that are whole numbers from 0, or null.
        layer_lists: those that list layer indices, or are null.
        mlp: of the blocks without experts.
        experts: what stands in its place in the blocks that have them.
        placement: which blocks those are.
        bare_experts: see ModelShape.
        final_norm: before the head.
        names: see ModelShape.
        head_bias: the head has one.
        position_offset: rows of the table of positions beyond `max_position_embeddings`; None where there is no table.
        outer_matrices: see ModelShape.
        outer_norms: see ModelShape.
        embedding_key: the key that says how wide embedding and head are, where it is one of `optional`.
        refine: the dimensions that other keys change.
        parallel: see ModelShape.parallel_residual.
        activation: the MLP's, where no key says it.
        optional_window: `sliding_window` counts only where `use_sliding_window` says so.
        windowed: how many blocks' attention has the window, by other keys than `layer_types`, which counts before them.
        whole_every: the attention of every so-manieth block has no window; 0 where all have it.
        pattern_key: the key that says so.
        floors_head_dim: heads that do not divide `hidden_size` are as wide as the quotient rounded down; elsewhere
            transformers refuses them.
        even_heads: transformers takes heads to be as wide as hidden_size / heads in a norm or the output projection,
            whatever `head_dim` says, and runs no model where that is another.
        partial_rotary: see ModelShape.
        eager_attention: see ModelShape.
    """

    defaults: Mapping[str, Any]
    attention: Matrices
    mlp: Matrices
    norms: Norms
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    layer_lists: tuple[str, ...] = ()
    experts: Matrices | None = None
    placement: Placement = everywhere
    bare_experts: str | None = None
    mlp_kind: MlpKind = "gated"
    norm_kind: NormKind = "rms"
    final_norm: Norms = FINAL_NORM
    names: OuterNames = LLAMA_NAMES
    head_bias: Bias = never
    position_offset: int | None = None
    outer_matrices: Matrices = no_matrices
    outer_norms: Norms = no_norms
    embedding_key: str | None = None
    refine: Callable[[Dimensions], Dimensions] = as_they_are
    parallel: Bias = never
    activation: str | None = None
    optional_window: bool = False
    windowed: Callable[[Dimensions], int] | None = None
    whole_every: int = 0
    pattern_key: str | None = None
    floors_head_dim: bool = False
    even_heads: Bias = never
    partial_rotary: bool = False
    eager_attention: bool = False


EQUAL_HEADS: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
COMMON: dict[str, Any] = {**EQUAL_HEADS, "num_key_value_heads": None, "head_dim": None}
LLAMA: dict[str, Any] = {
    **COMMON,
    "vocab_size": 32000,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "attention_bias": False,
}
LLAMA_BIASES: dict[str, Any] = {**LLAMA, "mlp_bias": False}
