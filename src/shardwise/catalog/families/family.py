"""What the rules of a family say.

A config.json leaves out keys that equal the defaults of transformers' configuration class, so
`configurations.json` states those, how keys are read, and what of a family is a number, a name or
a yes. Tests compare them with transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.catalog.families import blocks
from shardwise.catalog.families.blocks import Bias, Dimensions, Matrices, Norms, hidden_norms
from shardwise.catalog.families.expert_blocks import Placement, everywhere
from shardwise.spec.model.shape import LLAMA_NAMES, MlpKind, NormKind, OtherBlocks, OuterNames

FINAL_NORM = hidden_norms("norm")
BIASED_FINAL_NORM = hidden_norms("norm", bias=True)

#: Keys by which a family caps or scales its logits.
LOGIT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier", "mup_width_scale")


@dataclass(frozen=True, kw_only=True)
class Family:
    """The rules of one `model_type`.

    Attributes:
        defaults: the keys that this family reads, with their default values. None for
            `num_key_value_heads` means `num_attention_heads`, and for `head_dim` hidden_size /
            num_attention_heads.
        keys: usual key -> this family's own name for it.
        aliases: usual keys that are read too, before the own name.
        fallbacks: usual keys that are read where a file does not state the own name.
        numbers: keys that only this family's rules read: whole numbers from 1.
        optional: likewise, whole numbers from 0 or null.
        layer_lists: likewise, lists of layer indices or null.
        from_zero: of `numbers`, those that may be 0.
        nullable: keys whose default is a number, and which transformers reads a null of too;
            `no_null` those that a file may leave out, and of which transformers reads no null.
        choices: key -> the words that transformers' code knows of it.
        even_width: transformers refuses a width that is no multiple of the heads, whatever
            `head_dim` says; of others heads are as wide as that rounds down to.
        rotates: queries and keys are rotated as a whole; `rotations` in which ways, by rope_type;
            `rotation` where none is stated, and `rotated_share` how much of a head.
        pads: its embedding has a row for padding, `pad_token_id`.
        misfit: why transformers' code does not run with dimensions; "" where it does.
        attention, mlp, norms: of a block without experts.
        experts: replace the MLP in the blocks that `placement` names.
        head_bias: whether the head has a bias.
        position_offset: rows of the position table beyond `max_position_embeddings`; None where
            there is no table.
        embedding_key: the key of the width of embedding and head, one of `optional`.
        refine: changes dimensions that other keys change.
        activation: of the MLP, where no key states it.
        optional_window: `sliding_window` counts only where `use_sliding_window` is true.
        windowed: number of blocks whose attention has the window, where `layer_types` does not
            state it.
        whole_every: every n-th block's attention has no window; 0 where all blocks have it.
        pattern_key: the key of that n.
        windowless: with no `sliding_window` all of its blocks go without.
        even_heads: transformers runs the model only where `head_dim` is hidden_size /
            num_attention_heads.
        broadcasts_keys: its code hands PyTorch one head of keys for all of queries as it is, and
            PyTorch then takes the kernel that writes all scores out.
        bare_experts, names, outer_matrices, outer_norms, parallel, partial_rotary, scales_stream,
        eager_attention: see ModelShape.
    """

    attention: Matrices = blocks.LLAMA_ATTENTION
    mlp: Matrices = blocks.gated_mlp
    norms: Norms = blocks.LLAMA_NORMS
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    aliases: Sequence[str] = ()
    fallbacks: Sequence[str] = ()
    numbers: Sequence[str] = ()
    optional: Sequence[str] = ()
    layer_lists: Sequence[str] = ()
    from_zero: Sequence[str] = ()
    nullable: Sequence[str] = ()
    no_null: Sequence[str] = ()
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    even_width: bool = False
    rotates: bool = False
    rotations: Sequence[str] = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
    rotation: Mapping[str, Any] | None = None
    rotated_share: float = 1.0
    pads: bool = True
    misfit: Callable[[Dimensions], str] = lambda _: ""
    experts: Matrices | None = None
    placement: Placement = everywhere
    bare_experts: str | None = None
    mlp_kind: MlpKind = "gated"
    norm_kind: NormKind = "rms"
    final_norm: Norms = FINAL_NORM
    names: OuterNames = LLAMA_NAMES
    head_bias: Bias = blocks.never
    position_offset: int | None = None
    outer_matrices: Matrices = blocks.nothing
    outer_norms: Norms = blocks.nothing
    embedding_key: str | None = None
    refine: Callable[[Dimensions], Dimensions] = lambda d: d
    parallel: Bias = blocks.never
    activation: str | None = None
    optional_window: bool = False
    windowed: Callable[[Dimensions], int] | None = None
    whole_every: int = 0
    pattern_key: str | None = None
    windowless: bool = False
    even_heads: Bias = blocks.never
    partial_rotary: bool = False
    scales_stream: bool = False
    eager_attention: bool = False
    broadcasts_keys: bool = False


def blocks_of(family: Family, d: Dimensions) -> tuple[OtherBlocks, ...]:
    """The kinds of blocks of a model, the most numerous first."""
    norms, attention = family.norms(d), family.attention(d)
    sparse = sum(map(bool, family.placement(d))) if family.experts else 0
    dense = OtherBlocks(count=d.layers - sparse, matrices=attention + family.mlp(d), norms=norms)
    if family.experts is None or not sparse:
        return (dense,)
    routed = OtherBlocks(count=sparse, matrices=attention + family.experts(d), norms=norms)
    kinds = (routed, dense) if routed.count >= dense.count else (dense, routed)
    return tuple(kind for kind in kinds if kind.count)
