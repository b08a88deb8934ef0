"""Compiled blocks: passes over memory that fusing leaves."""

from shardwise.plan.work import Work

#: Compiled, operators between products are fused: this share of their passes over memory is left.
COMPILED_PASSES_SHARE = 0.4


def fused_share(work: Work) -> float:
    """Share of the passes over memory between products that compilation leaves."""
    return COMPILED_PASSES_SHARE if work.execution.compile else 1.0
