"""What follows a rank's last backward in a step: gradients still to be summed, the optimizer, new weights."""

from __future__ import annotations

from typing import NamedTuple

from shardwise.plan.costs.gradients import late_reduction, sum_of_ends
from shardwise.plan.costs.optimizer import optimizer_step
from shardwise.plan.costs.piece import NO_TIME, RankTime
from shardwise.plan.costs.zero1 import late_gather
from shardwise.plan.work import Work, blocks_of_stages, mean, outer_of_stage


class Ending(NamedTuple):
    """What a rank does behind its last backward: (name, piece), in order."""

    pieces: tuple[tuple[str, RankTime], ...]

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(piece.seconds for _, piece in self.pieces)


def endings_of(work: Work) -> tuple[Ending, ...]:
    """What the ranks at each pipeline coordinate do behind their last backward."""
    return work.once("endings", lambda: _endings(work), work.execution.layout.schedule)


def _endings(work: Work) -> tuple[Ending, ...]:
    elements, tied = _trained_elements(work), sum_of_ends(work)
    keys = [(trained, pp in (0, len(elements) - 1)) for pp, trained in enumerate(elements)]
    made = {key: _ending(work, key[0], tied=tied if key[1] else NO_TIME) for key in set(keys)}
    return tuple(made[key] for key in keys)


def _ending(work: Work, trained: float, *, tied: RankTime) -> Ending:
    named = (
        ("reduce gradients", late_reduction(work, trained)),
        ("add tied gradients", tied),
        ("optimizer", optimizer_step(work, trained)),
        ("gather weights", late_gather(work, trained)),
    )
    return Ending(tuple((name, piece) for name, piece in named if piece.seconds))


def _trained_elements(work: Work) -> list[float]:
    """Trained elements of a rank at each pipeline coordinate, were it not sharded over data ranks."""
    layout, spans = work.execution.layout, blocks_of_stages(work.model, work.execution.layout)
    block = mean(work, lambda unit: unit.trained_elements)
    held = [blocks * block for blocks in spans]
    for stage in {0, len(spans) - 1}:
        held[stage] += outer_of_stage(work, stage).trained_elements
    return [sum(held[stage] for stage in range(pp, len(spans), layout.pp)) / layout.tp for pp in range(layout.pp)]
