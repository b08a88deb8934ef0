"""What a rank's largest block keeps and works in, as a record: bytes per token, unless said."""

from dataclasses import dataclass

from shardwise.plan.work import activations as of
from shardwise.plan.work.activations import BlockSetting
from shardwise.plan.work.tensors import FLOAT32_BYTES
from shardwise.spec.layout.execution import Recompute
from shardwise.spec.model.profile import Amount, ModelProfile
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.rows import in_nf4


@dataclass(frozen=True, kw_only=True)
class BlockBytes:
    """Of a block on one tensor-parallel rank: as the `activations` function of that name, and here.

    Attributes:
        stream: the residual stream, which is a block's input.
        saved_whole: all that its operators save.
        saved: what the mean block keeps under the execution, which may make some of it again.
        saved_tensors: each tensor that it saves under recompute.
        gradients: inside it, above what it saved.
        tile: of a tile of the MLP, by its own tokens, in forward and in backward.
        last_matrix: elements of the matrix that reads a dense MLP's product, where it is trained.
        computed_weights: bytes of whole matrices that exist while one is used: dequantised, or with
            DoRA's norms.
        remade, remade_by_mean: bytes of weights with their adapters' products that it, or the mean
            block, makes of bare parameters; of a profile what does not grow with rows.
    """

    stream: float
    saved_whole: float
    saved: float
    saved_tensors: tuple[float, ...]
    gradients: tuple[float, float, float]
    cut_backward: float
    final_norm: float
    reads_in_place: bool
    remade: float
    remade_by_mean: float
    saved_by_mlp: float = 0.0
    tile: tuple[float, float] = (0.0, 0.0)
    attention_backward: float = 0.0
    norm_backward: float = 0.0
    routed: tuple[float, float] = (0.0, 0.0)
    fused_mlp: float = 0.0
    compiled_attention: float = 0.0
    last_matrix: int = 0
    computed_weights: float = 0.0
    remade_backward: float = 0.0


def block_bytes(
    model: ModelShape, setting: BlockSetting, *, recompute: Recompute, quantised: bool, experts: bool
) -> BlockBytes:
    """Counts all for the model on one rank, its `quantised` linear layers and its `experts`."""
    kinds = model.kinds
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


def profiled_bytes(
    model: ModelShape, setting: BlockSetting, profile: ModelProfile, *, recompute: Recompute
) -> BlockBytes:
    """As `block_bytes`, out of a profile of one rank."""

    def token(amount: Amount) -> float:
        return amount.per_token(setting.length)

    stream, saved = of.block_input_bytes(model, setting), _mean(model, [token(one.saved) for one in profile.blocks])
    return BlockBytes(
        stream=stream,
        saved_whole=max(token(block.forward) for block in profile.blocks) + stream,
        saved=saved,
        saved_tensors=(stream,) if recompute == "full" else (saved,),
        gradients=(stream, 0.0, 0.0),
        cut_backward=of.cut_backward_bytes(model, setting),
        final_norm=token(profile.final),
        reads_in_place=setting.types.compute == FLOAT32_BYTES,
        remade=max(block.forward.once for block in profile.blocks),
        remade_by_mean=_mean(model, [block.saved.once for block in profile.blocks]),
    )


def _mean(model: ModelShape, of_kinds: list[float]) -> float:
    return sum(kind.num_layers * one for kind, one in zip(model.kinds, of_kinds, strict=True)) / model.num_layers


def _last_matrix(model: ModelShape, setting: BlockSetting) -> int:
    last = [m for m in model.matrices if m.reads == "mlp_product" and setting.inventory.trained(m.name)]
    return max((m.rows * m.columns for m in last), default=0)


def _computed_weights(model: ModelShape, setting: BlockSetting, *, quantised: bool, experts: bool) -> float:
    """Stacks of a block are dequantised together, a linear layer by itself. For DoRA, PEFT
    multiplies an identity by A and B, adds the scaled product to the weight, and takes norms of its
    rows, in the adapters' type where that is wider."""
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
