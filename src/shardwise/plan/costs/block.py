"""A block: what it keeps from its forward to its backward, and what all blocks share."""

from shardwise.plan.costs.saved_on_host import on_gpu
from shardwise.plan.work import Scene


def saved_by_blocks(scene: Scene, blocks: int) -> float:
    """What so many blocks keep; where kinds have profiles, of those that the rank holds."""
    work, counts = scene.work, [count for count, _ in scene.part.inventory.blocks]
    if work.profile and sum(counts) and not work.saves_on_host:
        kinds = zip(counts, work.profile.blocks, strict=True)
        return blocks * sum(count * work.profiled(kind.saved) for count, kind in kinds) / sum(counts)
    saved = (on_gpu(scene, blocks) if work.saves_on_host else blocks) * work.of_block.saved
    return work.tokens * saved + (blocks * work.of_block.remade_by_mean if work.execution.recompute == "none" else 0.0)


def of_one_block(scene: Scene) -> float:
    """What a block saved, or made again, when its backward begins, and its output's gradient."""
    work = scene.work
    recomputed = work.execution.recompute != "none" and not work.of_block.reads_in_place
    saved = work.of_block.saved_whole + (work.of_block.stream if recomputed else 0.0) + work.of_block.gradients[0]
    return work.tokens * saved + shared(scene) + work.of_block.remade


def shared(scene: Scene) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one."""
    work, length = scene.work, scene.work.job.data.max_length
    if work.profile:
        return work.profiled(work.profile.shared)
    # Sines and cosines of every sequence's own positions.
    rotary = 0 if work.model.position_parameters else 2 * work.model.head_dim * work.types.compute * work.tokens
    # A boolean mask per sequence; kernels read it in the compute type (`costs/context.py`).
    numbers = 0 if work.setting.in_parts else work.types.compute
    return rotary + (work.tokens * length * (1 + numbers) if work.setting.masked else 0)
