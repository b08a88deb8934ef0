"""Activation checkpointing: what blocks keep from forward to backward, on the GPU or in the host's
memory, what all of them share, and the seconds of what a backward computes again."""

from shardwise.plan.costs.piece import BlockTime
from shardwise.plan.rates import copy_seconds
from shardwise.plan.work import Holding, Scene, Work, flights, page_locked_bytes
from shardwise.spec.layout.axes import stages_per_rank
from shardwise.spec.layout.execution import SAVED_ON_GPU
from shardwise.spec.support.attention import KEPT_BY_SELECTIVE

#: Times as long the host takes for an operator that eager selective recompute hands to Python, in
#: forward and again: blocks of a 4B model took 14.8 ms, and 6 ms otherwise, on a host three times
#: slower than `rates` has.
DISPATCH_OVER_OPERATOR = 4.0
#: Of the collectives of tensor parallelism, those that are made again where a block is recomputed,
#: in full or but for its products: `checkpoint` stops at the last tensor that backward asks for,
#: before the sum behind the block's last matrix.
_SLICES_AGAIN = 0.75


def seconds_again(work: Work, ran: BlockTime) -> tuple[float, float]:
    """Seconds of kernels that run again in a block's backward, and of messages."""
    recompute = work.execution.recompute
    if recompute == "none":
        return 0.0, 0.0
    kept = work.execution.attn_implementation in KEPT_BY_SELECTIVE
    selective = ran.remade + ran.between + (0.0 if kept else ran.attention)
    return selective if recompute == "selective" else ran.forward, ran.slices * _SLICES_AGAIN + ran.keys


def dispatched_operators(work: Work, ran: BlockTime) -> float:
    """Extra operators on the host in a pass: eager selective recompute hands all to Python."""
    eagerly = work.execution.recompute == "selective" and not work.execution.compile
    return ran.operators * DISPATCH_OVER_OPERATOR if eagerly else 0


def on_gpu(scene: Scene, blocks: int) -> int:
    """Blocks whose saved tensors are on the GPU at a time, if offloaded to the host; with others in
    flight, also the last of each stage's newest micro-batch, in an older one's backward."""
    newest = stages_per_rank(scene.work.execution.layout.schedule) if scene.flight.pairs > 1 else 0
    return min(blocks, SAVED_ON_GPU) + newest


def saved_on_host(work: Work, holding: Holding) -> int:
    """Bytes of page-locked memory for what a rank's blocks save, of all micro-batches in flight."""
    if not work.saves_on_host:
        return 0
    execution, blocks = work.execution, len(holding.part.span)
    ways = flights(execution.layout, pp=holding.part.pp, num_micro_batches=execution.gradient_accumulation_steps)
    of_one = sum(page_locked_bytes(work.tokens * size) for size in work.of_block.saved_tensors)
    return max(flight.pairs for flight in ways) * blocks * of_one


def copied_seconds(work: Work) -> float:
    """Seconds in which what the block before saved leaves, or comes for the next, in a block."""
    return copy_seconds(work.cluster, work.tokens * work.of_block.saved) if work.saves_on_host else 0.0


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


def shared(scene: Scene, *, of_first: float = 1.0) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one. `of_first`: share
    of micro-batches in the first stage, which alone makes what a message has beside the stream."""
    work, length = scene.work, scene.work.job.data.max_length
    # Sines and cosines of every sequence's own positions.
    rotary = 0 if work.model.position_parameters else 2 * work.model.head_dim * work.types.compute * work.tokens
    # A boolean mask per sequence; kernels read it in the compute type (`costs/context.py`).
    numbers = 0 if work.setting.in_parts else work.types.compute
    made = rotary + (work.tokens * length * (1 + numbers) if work.setting.masked else 0)
    if not work.profile:
        return made
    measured, first = work.profiled(work.profile.shared), of_first if scene.part.is_first else 0.0
    return measured - (1 - first) * max(0, measured - made) * bool(work.model.passed)
