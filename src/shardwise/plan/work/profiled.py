"""The bytes of a block whose code no rule knows, out of its profile."""

from shardwise.plan.work import activations as of
from shardwise.plan.work.activations import BlockSetting
from shardwise.plan.work.block_bytes import BlockBytes, ProfiledMoment
from shardwise.plan.work.tensors import FLOAT32_BYTES
from shardwise.spec.layout.execution import Recompute
from shardwise.spec.model.profile import Amount, ModelProfile
from shardwise.spec.model.shape import ModelShape


def profiled_bytes(
    model: ModelShape, setting: BlockSetting, profile: ModelProfile, *, recompute: Recompute
) -> BlockBytes:
    """As `block_bytes` counts them; what does not grow with rows stands with the weights that a block makes. Tensor
    parallelism is taken to share out all of it."""
    length, tp = setting.length, setting.tp
    counts = [kind.num_layers for kind in model.kinds]

    def token(amount: Amount) -> float:
        return amount.per_token(length) / tp

    def mean(values: list[float]) -> float:
        return sum(count * one for count, one in zip(counts, values, strict=True)) / model.num_layers

    stream = of.block_input_bytes(model, setting)
    saved = mean([token(block.saved) for block in profile.blocks])
    moments = tuple(
        ProfiledMoment(
            alive=token(moment.alive) + stream, once=moment.alive.once, made=moment.gradients, fresh=moment.fresh
        )
        for block in profile.blocks
        for moment in block.backward
    )
    return BlockBytes(
        tile=(0.0, 0.0),
        attention_backward=0.0,
        behind_attention=0.0,
        stream=stream,
        saved_whole=max(token(block.forward) for block in profile.blocks) + stream,
        saved=saved,
        saved_by_mlp=0.0,
        saved_tensors=(stream,) if recompute == "full" else (saved,),
        gradients=(stream, 0.0, 0.0),
        mlp_begins=0.0,
        again_at_adapter=0.0,
        norm_backward=0.0,
        routed=(0.0, 0.0),
        cut_backward=of.cut_backward_bytes(model, setting),
        fused_mlp=0.0,
        compiled_attention=0.0,
        final_norm=token(profile.final),
        reads_in_place=setting.types.compute == FLOAT32_BYTES,
        last_matrix=0,
        computed_weights=0.0,
        remade=max(block.forward.once for block in profile.blocks),
        remade_by_mean=mean([block.saved.once for block in profile.blocks]),
        remade_backward=0.0,
        moments=moments,
        saved_by_kind=tuple((token(block.saved), block.saved.once) for block in profile.blocks),
        shared=(token(profile.shared), profile.shared.once),
    )
