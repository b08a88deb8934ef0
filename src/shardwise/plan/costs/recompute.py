"""Activation checkpointing: the seconds of what a block's backward computes again."""

from shardwise.plan.costs.piece import BlockTime
from shardwise.plan.work import Work
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
