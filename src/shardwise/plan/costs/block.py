"""A block: what it keeps from its forward to its backward, and what all blocks share."""

from __future__ import annotations

from shardwise.plan.costs.saved_on_host import on_gpu
from shardwise.plan.work import Scene


def saved_by_blocks(scene: Scene, blocks: int) -> float:
    """What so many blocks keep."""
    work = scene.work
    saved = (on_gpu(scene, blocks) if work.saves_on_host else blocks) * work.saved
    return work.tokens * saved + (blocks * work.remade_by_mean if work.keeps_remade else 0.0)


def of_one_block(scene: Scene) -> float:
    """What a block has saved, or made again, when its backward begins, and the gradient of what it gave."""
    work = scene.work
    recomputed = work.execution.recompute != "none" and not work.reads_in_place
    saved = work.saved_whole + (work.block_input if recomputed else 0.0) + work.block_backward[0]
    return work.tokens * saved + shared(scene) + work.remade


def shared(scene: Scene) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one."""
    work, length = scene.work, scene.work.job.data.max_length
    # Sines and cosines of every sequence's own positions.
    rotary = 0 if work.model.position_parameters else 2 * work.model.head_dim * work.types.compute * work.tokens
    # A boolean mask for each sequence; PyTorch's kernels read it as numbers of the compute type.
    mask = work.tokens * length * (1 + work.types.compute) if work.setting.masked else 0
    return rotary + mask
