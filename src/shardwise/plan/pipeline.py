"""Time of a pipeline: the trainer's own orders of forwards and backwards, each action starting when its rank is free
and what it needs has arrived.

Large numbers of micro-batches are not walked through: once a pipeline is full it repeats itself, so a short run and
one twice as long give its pace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from shardwise.spec.layout import Schedule, stages_per_rank
from shardwise.spec.schedule import ActionKind, actions

#: Rounds of as many micro-batches as there are ranks after which a pipeline is taken to repeat itself.
_ROUNDS: dict[Schedule, int] = {"gpipe": 1, "1f1b": 4, "zero_bubble": 4, "interleaved": 8}


class StageSeconds(NamedTuple):
    """Seconds of one stage's actions for one micro-batch; `weights` is the part of `backward` that can wait."""

    forward: float
    backward: float
    weights: float

    def of(self, kind: ActionKind) -> float:
        """Seconds of one action."""
        if kind == "forward":
            return self.forward
        if kind == "backward_weight":
            return self.weights
        return self.backward - self.weights if kind == "backward_input" else self.backward


@lru_cache(maxsize=4096)
def rank_ends(
    schedule: Schedule, *, stages: tuple[StageSeconds, ...], num_micro_batches: int, send: float
) -> tuple[float, ...]:
    """When each pipeline rank has done its last action.

    Args:
        schedule: whose order.
        stages: seconds of each stage's actions.
        num_micro_batches: of the step.
        send: seconds from the end of an action until its result has reached the next stage.
    """
    ranks = len(stages) // stages_per_rank(schedule)
    if schedule == "sequential":
        once = sum(stage.forward + stage.backward for stage in stages) + 2 * send * (len(stages) - 1)
        ends = walk(schedule, stages=stages, num_micro_batches=1, send=send)
        return tuple(end + (num_micro_batches - 1) * once for end in ends)
    rounds = _ROUNDS[schedule]
    short, longer = (number * ranks + num_micro_batches % ranks for number in (rounds, 2 * rounds))
    if num_micro_batches <= longer:
        return walk(schedule, stages=stages, num_micro_batches=num_micro_batches, send=send)
    before = walk(schedule, stages=stages, num_micro_batches=short, send=send)
    after = walk(schedule, stages=stages, num_micro_batches=longer, send=send)
    pace = (max(after) - max(before)) / (longer - short)
    return tuple(end + (num_micro_batches - longer) * pace for end in after)


def walk(
    schedule: Schedule,
    *,
    stages: tuple[StageSeconds, ...],
    num_micro_batches: int,
    send: float,
    seen: Callable[[int, ActionKind, int, int, float, float], None] | None = None,
) -> tuple[float, ...]:
    """Every action of every rank in turn.

    Args:
        schedule: whose order.
        stages: seconds of each stage's actions.
        num_micro_batches: of the step.
        send: seconds from the end of an action until its result has reached the next stage.
        seen: told (rank, kind, stage, micro-batch, start, end) of each action.

    Returns:
        When each rank has done its last action.
    """
    ranks = len(stages) // stages_per_rank(schedule)
    orders = [
        actions(schedule, num_ranks=ranks, rank=rank, num_micro_batches=num_micro_batches) for rank in range(ranks)
    ]
    last, clock, position = len(stages) - 1, [0.0] * ranks, [0] * ranks
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    left = sum(map(len, orders))
    while left:
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                action = order[position[rank]]
                ready = _ready(action.kind, action.stage, action.micro, forward, backward, last=last)
                if ready is None:
                    break
                start = max(clock[rank], ready + send if ready else 0.0)
                end = clock[rank] = start + stages[action.stage].of(action.kind)
                if action.kind == "forward":
                    forward[action.stage, action.micro] = end
                elif action.kind != "backward_weight":
                    backward[action.stage, action.micro] = end
                if seen is not None:
                    seen(rank, action.kind, action.stage, action.micro, start, end)
                position[rank] += 1
                left -= 1
    return tuple(clock)


def _ready(
    kind: ActionKind,
    stage: int,
    micro: int,
    forward: Mapping[tuple[int, int], float],
    backward: Mapping[tuple[int, int], float],
    *,
    last: int,
) -> float | None:
    """When the neighbour's result was done that an action needs; 0 where it needs none, None where it is not yet."""
    if kind == "forward":
        return 0.0 if stage == 0 else forward.get((stage - 1, micro))
    if kind == "backward_weight" or stage == last:
        return 0.0
    return backward.get((stage + 1, micro))
