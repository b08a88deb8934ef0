"""A lower bound of a step's seconds that needs no walk through a pipeline's actions."""

from __future__ import annotations

from shardwise.plan.time.endings import endings_of
from shardwise.plan.time.pieces import Pieces
from shardwise.plan.time.step import stages_of
from shardwise.plan.work import Work

#: Sums in another order may differ in their last digits.
ROUNDED = 1 - 1e-9


def least_seconds_of(work: Work, pieces: Pieces) -> float:
    """Of a pipeline's step, at the least: a rank waits until its first micro-batch has come through the stages before
    it and computes all its own, and the last gradient goes back through these; then its optimizer steps."""
    layout, micros = work.execution.layout, work.execution.gradient_accumulation_steps
    stages = stages_of(work, pieces)
    seconds = {stage: (stage.forward_pass().seconds, stage.backward_pass().seconds) for stage in set(stages)}
    each = {stage: micros * (forward + backward) for stage, (forward, backward) in seconds.items()}
    ahead = min(forward for forward, _ in seconds.values())
    cut = layout.schedule == "zero_bubble"
    back = min(backward - cut * stage.blocks * stage.weights for stage, (_, backward) in seconds.items())
    least = 0.0
    for rank in range(layout.pp):
        own = stages[rank :: layout.pp]
        busy = sum(each[stage] for stage in own)
        later = rank * back
        if cut:  # weights' gradients may be made while the last gradient goes back
            later = max(0.0, later - micros * sum(stage.blocks * stage.weights for stage in own))
        least = max(least, rank * ahead + busy + later)
    return ROUNDED * (least + min(ending.seconds for ending in endings_of(work)))
