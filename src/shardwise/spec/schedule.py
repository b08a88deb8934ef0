"""Pipeline schedules: the order in which each rank works through stages and micro-batches.

The trainer executes these orders and the planner simulates them, so that a forecast bubble is a bubble of this very
order. Messages are not part of it: they follow from what each action needs and makes.

- `sequential`: one micro-batch at a time through all stages; naive model parallel.
- `gpipe` (Huang et al., 2019): all forwards, then all backwards.
- `1f1b` (Narayanan et al., 2019, PipeDream-Flush): after a warm-up, one forward and one backward in turn, so that a
  rank keeps no more micro-batches than there are stages behind it.
- `interleaved` (Narayanan et al., 2021): 1f1b over two stages per rank; the bubble halves, messages double.
- `zero_bubble` (Qi et al., 2023, ZB-H1): 1f1b whose backward is cut in two; gradients of weights, which nobody waits
  for, fill what would be bubbles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice, pairwise
from typing import Literal, NamedTuple

from shardwise.spec.layout import Schedule, stages_per_rank

ActionKind = Literal["forward", "backward", "backward_input", "backward_weight"]


class Action(NamedTuple):
    """One stretch of a rank's work.

    Attributes:
        kind: `backward` makes the gradients of inputs and of weights; the other two make one of them.
        stage: which stage of the whole pipeline.
        micro: which micro-batch of the step.
    """

    kind: ActionKind
    stage: int
    micro: int


@lru_cache(maxsize=4096)
def actions(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> tuple[Action, ...]:
    """What one pipeline rank does in one optimizer step, in order.

    Args:
        schedule: whose order.
        num_ranks: pipeline ranks.
        rank: which of them.
        num_micro_batches: of the step; any number.
    """
    return tuple(order_of(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches))


def order_of(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> Iterator[Action]:
    """The same one after the other: what deep pipelines do with many micro-batches is long, and not to be kept."""
    return _ORDERS[schedule](num_ranks, rank, num_micro_batches)


def forwards(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> tuple[Action, ...]:
    """The forwards alone, as an evaluation runs them."""
    order = actions(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches)
    return tuple(action for action in order if action.kind == "forward")


def in_flight(order: Iterable[Action]) -> int:
    """The most (stage, micro-batch) pairs of a rank whose saved activations are alive at once."""
    alive = most = 0
    for action in order:
        alive += {"forward": 1, "backward": -1, "backward_input": 0, "backward_weight": -1}[action.kind]
        most = max(most, alive)
    return most


def _sequential(_num_ranks: int, rank: int, micros: int) -> Iterator[Action]:
    for micro in range(micros):
        yield Action("forward", rank, micro)
        yield Action("backward", rank, micro)


def _gpipe(_num_ranks: int, rank: int, micros: int) -> Iterator[Action]:
    for kind in ("forward", "backward"):
        yield from (Action(kind, rank, micro) for micro in range(micros))


def _one_forward_one_backward(num_ranks: int, rank: int, micros: int) -> Iterator[Action]:
    ahead = (Action("forward", rank, micro) for micro in range(micros))
    back = (Action("backward", rank, micro) for micro in range(micros))
    return _alternate(ahead, back, warm_up=num_ranks - rank - 1)


def _interleaved(num_ranks: int, rank: int, micros: int) -> Iterator[Action]:
    """Micro-batches go through a rank's stages in rounds, each of at least as many as there are ranks if possible."""
    chunks = stages_per_rank("interleaved")
    stages = [rank + chunk * num_ranks for chunk in range(chunks)]
    num_rounds = max(1, micros // num_ranks)
    bounds = [micros * index // num_rounds for index in range(num_rounds + 1)]

    def rounds(kind: ActionKind, order: list[int]) -> Iterator[Action]:
        for begin, end in pairwise(bounds):
            yield from (Action(kind, stage, micro) for stage in order for micro in range(begin, end))

    longest = max(end - begin for begin, end in pairwise(bounds))
    warm_up = 2 * (num_ranks - rank - 1) + (chunks - 1) * longest
    return _alternate(rounds("forward", stages), rounds("backward", stages[::-1]), warm_up=warm_up)


def _zero_bubble(num_ranks: int, rank: int, micros: int) -> Iterator[Action]:
    """Of the weights' gradients, as many wait as there are ranks before this one: they are done while others drain."""
    waiting: deque[Action] = deque()
    for action in _one_forward_one_backward(num_ranks, rank, micros):
        if action.kind == "forward":
            yield action
            continue
        yield Action("backward_input", rank, action.micro)
        waiting.append(Action("backward_weight", rank, action.micro))
        if len(waiting) > rank:
            yield waiting.popleft()
    yield from waiting


def _alternate(ahead: Iterator[Action], back: Iterator[Action], *, warm_up: int) -> Iterator[Action]:
    """So many forwards first, then one forward and one backward in turn, then the backwards that are left."""
    yield from islice(ahead, warm_up)
    for forward in ahead:
        yield forward
        yield next(back)
    yield from back


_ORDERS: dict[Schedule, Callable[[int, int, int], Iterator[Action]]] = {
    "sequential": _sequential,
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
}
