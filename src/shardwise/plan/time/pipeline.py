"""Time of a pipeline: the trainer's own actions, each as its rank and its input are there."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardwise.spec.layout.axes import Schedule, stages_per_rank
from shardwise.spec.layout.schedule import ActionKind, order_of

#: Rounds of as many micro-batches as ranks after which a pipeline is taken to repeat itself.
_ROUNDS: dict[Schedule, int] = {"gpipe": 1, "1f1b": 4, "zero_bubble": 4, "interleaved": 8}


class StageSeconds(NamedTuple):
    """Seconds of a stage's actions for one micro-batch; `weights`: what can wait of `backward`."""

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
    """When each pipeline rank has done its last action. A full pipeline repeats itself, so that of
    many micro-batches a short run and one twice as long give the pace. `send` is the seconds from
    the end of an action until its result has reached the next stage."""
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
    # The filling and draining of both runs cancel out.
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
    """Runs every action of every rank; `seen` is told (rank, kind, stage, micro-batch, start, end)
    of each. Returns when each rank has done its last action."""
    ranks = len(stages) // stages_per_rank(schedule)
    many = {"num_ranks": ranks, "num_micro_batches": num_micro_batches}
    orders = [order_of(schedule, rank=rank, **many) for rank in range(ranks)]
    tables = _tables(stages, num_micro_batches)
    clock, following = [0.0] * ranks, [next(order, None) for order in orders]
    while any(following):
        # Each rank goes on until it needs what is not there yet; then it is the next one's turn.
        for rank, order in enumerate(orders):
            now, action = clock[rank], following[rank]
            while action is not None:
                kind, stage, micro = action
                needed, made, seconds = tables[kind][stage]
                start = now
                if needed is not None:
                    done = needed[micro]
                    if done is None:
                        break
                    if done + send > now:
                        start = done + send
                now = made[micro] = start + seconds
                if seen is not None:
                    seen(rank, kind, stage, micro, start, now)
                action = next(order, None)
            clock[rank], following[rank] = now, action
    return tuple(clock)


#: When the results of a stage were done, for each micro-batch; None as long as they are not.
_Done = list[float | None]


def _tables(
    stages: Sequence[StageSeconds], num_micro_batches: int
) -> dict[ActionKind, list[tuple[_Done | None, _Done, float]]]:
    """For each kind of action, of every stage: results it needs, those it makes, its seconds."""
    ahead, back, weights = ([_Done([None]) * num_micro_batches for _ in stages] for _ in range(3))
    before: list[_Done | None] = [None, *ahead[:-1]]
    behind: list[_Done | None] = [*back[1:], None]
    alone: list[_Done | None] = [None] * len(stages)
    kinds: dict[ActionKind, tuple[list[_Done | None], list[_Done]]] = {
        "forward": (before, ahead),
        "backward": (behind, back),
        "backward_input": (behind, back),
        "backward_weight": (alone, weights),
    }
    return {
        kind: [(needs, makes, one.of(kind)) for needs, makes, one in zip(*both, stages, strict=True)]
        for kind, both in kinds.items()
    }
