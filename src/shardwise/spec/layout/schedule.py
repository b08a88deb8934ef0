"""Pipeline schedules: the order in which each rank runs stages and micro-batches.

The trainer executes these orders and the planner simulates them. Messages follow from what each
action needs.

- `sequential`: one micro-batch at a time through all stages; naive model parallel.
- `gpipe` (Huang et al., 2019): all forwards, then all backwards.
- `1f1b` (Narayanan et al., 2019): after a warm-up one forward and one backward in turn, so that
  in-flight micro-batches are at most the stages that follow.
- `interleaved` (Narayanan et al., 2021): 1f1b over two stages per rank: half the bubble, twice the
  messages.
- `zero_bubble` (Qi et al., 2023, ZB-H1): 1f1b with the backward split in two; weight gradients fill
  the bubble.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain, islice, pairwise, product
from typing import Literal, NamedTuple

from shardwise.spec.layout.axes import Schedule, stages_per_rank

ActionKind = Literal["forward", "backward", "backward_input", "backward_weight"]


class Action(NamedTuple):
    """One stretch of a rank's work. `kind`: `backward` makes gradients of inputs and weights; the
    others make one. `stage`: of the whole pipeline. `micro`: which micro-batch of the step."""

    kind: ActionKind
    stage: int
    micro: int


#: The same without names.
Plain = tuple[ActionKind, int, int]


@lru_cache(maxsize=4096)
def actions(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> tuple[Action, ...]:
    """What one pipeline rank does in one optimizer step, in order."""
    order = order_of(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches)
    return tuple(map(Action._make, order))


def order_of(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> Iterator[Plain]:
    """Like `actions`, one after the other, as plain tuples."""
    return _ORDERS[schedule](num_ranks, rank, num_micro_batches)


def forwards(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> tuple[Action, ...]:
    """The forwards alone, as an evaluation runs them."""
    order = actions(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches)
    return tuple(action for action in order if action.kind == "forward")


def _each(kind: ActionKind, stage: int, micros: range) -> Iterator[Plain]:
    kinds: tuple[ActionKind, ...] = (kind,)
    return product(kinds, (stage,), micros)


def _sequential(_num_ranks: int, rank: int, micros: int) -> Iterator[Plain]:
    for micro in range(micros):
        yield "forward", rank, micro
        yield "backward", rank, micro


def _gpipe(_num_ranks: int, rank: int, micros: int) -> Iterator[Plain]:
    return chain(_each("forward", rank, range(micros)), _each("backward", rank, range(micros)))


def _one_forward_one_backward(num_ranks: int, rank: int, micros: int) -> Iterator[Plain]:
    ahead, back = _each("forward", rank, range(micros)), _each("backward", rank, range(micros))
    return _alternate(ahead, back, warm_up=num_ranks - rank - 1)


def _interleaved(num_ranks: int, rank: int, micros: int) -> Iterator[Plain]:
    """Micro-batches pass a rank's stages in rounds of at least as many as ranks, if possible."""
    chunks = stages_per_rank("interleaved")
    stages = [rank + chunk * num_ranks for chunk in range(chunks)]
    num_rounds = max(1, micros // num_ranks)
    bounds = [micros * index // num_rounds for index in range(num_rounds + 1)]

    def rounds(kind: ActionKind, order: list[int]) -> Iterator[Plain]:
        for begin, end in pairwise(bounds):
            for stage in order:
                yield from _each(kind, stage, range(begin, end))

    longest = max(end - begin for begin, end in pairwise(bounds))
    warm_up = 2 * (num_ranks - rank - 1) + (chunks - 1) * longest
    return _alternate(rounds("forward", stages), rounds("backward", stages[::-1]), warm_up=warm_up)


def _zero_bubble(num_ranks: int, rank: int, micros: int) -> Iterator[Plain]:
    """As many weight gradients are deferred as there are ranks before this one."""
    waiting: deque[Plain] = deque()
    for action in _one_forward_one_backward(num_ranks, rank, micros):
        kind, _, micro = action
        if kind == "forward":
            yield action
            continue
        yield "backward_input", rank, micro
        waiting.append(("backward_weight", rank, micro))
        if len(waiting) > rank:
            yield waiting.popleft()
    yield from waiting


def _alternate(ahead: Iterator[Plain], back: Iterator[Plain], *, warm_up: int) -> Iterator[Plain]:
    """`warm_up` forwards, then one forward and one backward in turn, then the other backwards."""
    # `zip` asks for a forward first, so that none of the backwards is lost behind the last one.
    return chain(islice(ahead, warm_up), chain.from_iterable(zip(ahead, back, strict=False)), back)


_ORDERS: dict[Schedule, Callable[[int, int, int], Iterator[Plain]]] = {
    "sequential": _sequential,
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zero_bubble": _zero_bubble,
}
