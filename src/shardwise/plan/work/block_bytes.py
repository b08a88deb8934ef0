"""What the largest block of one rank keeps and works in, as one record: bytes per token, unless said."""

from dataclasses import dataclass
from typing import NamedTuple

from shardwise.plan.work import activations as of
from shardwise.plan.work.activations import BlockSetting
from shardwise.spec.layout.execution import Recompute
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.rows import in_nf4


class ProfiledMoment(NamedTuple):
    """A moment of a block's backward that was measured. `alive`: bytes per token, with the stream that came to the
    block, and `once`, bytes whatever the tokens; `made`: elements of trained weights whose gradients are there;
    `fresh`: of the one that has just been made."""

    alive: float
    once: float
    made: int
    fresh: int


@dataclass(frozen=True, kw_only=True)
class BlockBytes:
    """Of a block on one tensor-parallel rank.

    Attributes:
        stream: the residual stream, which is a block's input.
        saved_whole: all that its operators save.
        saved: what the mean block keeps under the execution, which may make some of it again.
        saved_by_mlp: what its MLP saves, which backward has freed when that of attention begins.
        saved_tensors: each tensor that it saves under recompute.
        gradients: inside it, above what it saved (`activations.backward_bytes`).
        tile: of a tile of the MLP, by its own tokens, in forward and in backward; nothing where it is not in tiles.
        attention_backward: gradients of its result and of what it read; `behind_attention`: what norms keep that
            are between attention and the MLP, and are gone by then.
        mlp_begins: as backward comes to the matrix of its MLP that was first.
        again_at_adapter: as one that is computed again comes to the adapter of its MLP's last matrix.
        norm_backward: what the backward of a norm at its end works in, where it has one.
        routed: around the mean over experts, in forward and in backward.
        cut_backward: what a backward of inputs leaves for that of weights, where the two are cut.
        fused_mlp: in the kernel of a compiled block that makes the gradients inside its MLP.
        compiled_attention: as a compiled block's backward comes to attention, above what it saved and the stream's.
        final_norm: what the norm behind the blocks keeps.
        reads_in_place: it keeps its input as it comes in, and no copy of it.
        last_matrix: elements of the matrix that reads a dense MLP's product, where it is trained.
        computed_weights: bytes of whole matrices that exist while one is used: dequantised, or with DoRA's norms.
        remade, remade_by_mean: bytes of weights with their adapters' products that it, or the mean block, makes of bare
            parameters.
        remade_backward: bytes of the gradients of such weights.
        moments: of its backward, where it has a profile and no rules; of each kind.
        saved_by_kind: of such a model, what a block of each kind keeps: bytes per token, and whatever the tokens.
        shared: of such a model, what all blocks share, likewise.
    """

    stream: float
    saved_whole: float
    saved: float
    saved_by_mlp: float
    saved_tensors: tuple[float, ...]
    gradients: tuple[float, float, float]
    tile: tuple[float, float]
    attention_backward: float
    behind_attention: float
    mlp_begins: float
    again_at_adapter: float
    norm_backward: float
    routed: tuple[float, float]
    cut_backward: float
    fused_mlp: float
    compiled_attention: float
    final_norm: float
    reads_in_place: bool
    last_matrix: int
    computed_weights: float
    remade: float
    remade_by_mean: float
    remade_backward: float
    moments: tuple[ProfiledMoment, ...] = ()
    saved_by_kind: tuple[tuple[float, float], ...] = ()
    shared: tuple[float, float] | None = None


def block_bytes(
    model: ModelShape, setting: BlockSetting, *, recompute: Recompute, quantised: bool, experts: bool
) -> BlockBytes:
    """Counts all of it for the model as one rank sees it, whose linear layers may be `quantised`, and its `experts`."""
    kinds, again = model.kinds, recompute != "none"
    remade = [of.remade_bytes(kind, setting) for kind in kinds]
    return BlockBytes(
        stream=of.block_input_bytes(model, setting),
        saved_whole=max(of.everything_bytes(kind, setting) for kind in kinds),
        saved=_mean(model, [of.saved_bytes(kind, setting, recompute=recompute) for kind in kinds]),
        saved_by_mlp=of.mlp_bytes(model, setting, recompute=recompute),
        saved_tensors=max((of.saved_under_recompute(kind, setting, recompute) for kind in kinds), key=sum),
        gradients=of.backward_bytes(model, setting),
        tile=max(of.tile_bytes(kind, setting) for kind in kinds) if setting.tiled else (0.0, 0.0),
        attention_backward=of.attention_backward_bytes(model, setting),
        behind_attention=of.behind_attention_bytes(model, setting),
        mlp_begins=of.mlp_begin_bytes(model, setting),
        again_at_adapter=of.again_at_adapter_bytes(model, setting) if again else 0.0,
        norm_backward=of.norm_backward_bytes(model, setting),
        routed=max(of.routed_bytes(kind, setting) for kind in kinds),
        cut_backward=of.cut_backward_bytes(model, setting),
        fused_mlp=of.fused_mlp_bytes(model, setting, recompute=recompute),
        compiled_attention=of.compiled_attention_bytes(model, setting, recompute=recompute),
        final_norm=of.final_norm_bytes(model, setting),
        reads_in_place=of.reads_in_place(model, setting),
        last_matrix=_last_matrix(model, setting),
        computed_weights=_computed_weights(model, setting, quantised=quantised, experts=experts),
        remade=max(remade),
        remade_by_mean=_mean(model, remade),
        remade_backward=max(of.remade_backward_bytes(kind, setting) for kind in kinds),
    )


def _mean(model: ModelShape, of_kinds: list[float]) -> float:
    if len(of_kinds) == 1:
        return of_kinds[0]
    return sum(kind.num_layers * one for kind, one in zip(model.kinds, of_kinds, strict=True)) / model.num_layers


def _last_matrix(model: ModelShape, setting: BlockSetting) -> int:
    last = [m for m in model.matrices if m.reads == "mlp_product" and setting.inventory.trained(m.name)]
    return max((m.rows * m.columns for m in last), default=0)


def _computed_weights(model: ModelShape, setting: BlockSetting, *, quantised: bool, experts: bool) -> float:
    """Stacks of a block are dequantised together, a linear layer by itself. For DoRA, PEFT multiplies an identity by A
    and B, adds the scaled product to the weight, and takes norms of its rows, in the adapters' type where that is
    wider."""
    matrices = [m for kind in model.kinds for m in kind.matrices if m.adaptable]
    compute, wide = setting.types.compute, setting.adapter_bytes
    dequantised = max((m.rows * m.columns for m in matrices), default=0) if quantised else 0
    stacks = ([m for m in kind.matrices if m.stacked and in_nf4(m, experts=experts)] for kind in model.kinds)
    dequantised = max(dequantised, *(sum(m.count * m.rows * m.columns for m in kind) for kind in stacks))
    if not setting.inventory.dora:
        return dequantised * compute
    sums = 2 * compute + wide + (wide if wide != compute else 0)
    adapted = (m for m in matrices if m.name in setting.inventory.adapted)
    normed = max((sums * m.rows * m.columns + wide * m.columns**2 for m in adapted), default=0)
    return dequantised * compute + normed
