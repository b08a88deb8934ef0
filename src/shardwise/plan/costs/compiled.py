"""Compiled blocks: passes over memory that fusing leaves, what is made again of what was saved."""

from shardwise.plan.costs.piece import device_of
from shardwise.plan.work import Work

#: Compiled, operators between products are fused: this share of their passes over memory is left.
COMPILED_PASSES_SHARE = 0.4


def fused_share(work: Work) -> float:
    """Share of the passes over memory between products that compilation leaves."""
    return COMPILED_PASSES_SHARE if work.execution.compile else 1.0


def written_again(work: Work) -> float:
    """Seconds of writing what a compiled block makes again of what it saved, without recompute."""
    if not (work.execution.compile and work.execution.recompute == "none"):
        return 0.0
    return device_of(work).bytes_moved(work.tokens * (work.of_block.saved_whole - work.of_block.saved))
