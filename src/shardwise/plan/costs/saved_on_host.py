"""What recomputed blocks save, kept in the host's memory from forward to backward."""

from shardwise.plan.rates import copy_seconds
from shardwise.plan.work import Holding, Scene, Work, flights, page_locked_bytes
from shardwise.spec.layout.axes import stages_per_rank
from shardwise.spec.layout.execution import SAVED_ON_GPU


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
