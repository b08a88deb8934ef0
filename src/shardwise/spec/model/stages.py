"""Which blocks each pipeline stage holds and FSDP gathers together, for planner and trainer.

Stages are balanced by cost, the mean of multiplied elements (FLOPs) and stored elements (bytes) of
their parts.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from shardwise.spec.model.shape import ModelShape


def stage_blocks(model: ModelShape, *, num_stages: int) -> tuple[range, ...]:
    """Blocks of each stage, by mean cost of their kinds. Raises ValueError: too few of them."""
    return balanced(model.num_layers, num_stages=num_stages, costs=model.costs_of_stages)


def stage_sizes(model: ModelShape, *, num_stages: int) -> tuple[int, ...]:
    """How many blocks each stage has. Raises ValueError: there are more stages than blocks."""
    return _sizes(model.num_layers, num_stages, model.costs_of_stages)


@lru_cache(maxsize=1024)
def _sizes(num_blocks: int, num_stages: int, costs: tuple[float, float, float]) -> tuple[int, ...]:
    return tuple(len(span) for span in balanced(num_blocks, num_stages=num_stages, costs=costs))


@lru_cache(maxsize=1024)
def balanced(
    num_blocks: int, *, num_stages: int, costs: tuple[float, float, float] = (1.0, 0.0, 0.0)
) -> tuple[range, ...]:
    """Splits equal blocks into contiguous stages so that the costliest stage is as cheap as
    possible; of equal cuts the earliest. `costs`: of a block, and of the first and the last stage
    beside theirs. Raises ValueError: there are more stages than blocks."""
    block, first, last = costs
    if num_stages > num_blocks:
        raise ValueError(f"{num_stages} pipeline stages for {num_blocks} layers; use at most {num_blocks}")

    def least(stages: int, blocks: int) -> float:
        """The least maximum over the first stages, if they hold so many blocks."""
        others = stages - 1
        if not others:
            return first + block * blocks
        even = int((first + block * blocks) // (block * stages))
        sizes = {max(1, min(size, -(-(blocks - 1) // others))) for size in (even, even + 1)}
        return min(max(block * size, first + block * max(1, blocks - others * size)) for size in sizes)

    def last_begins(stages: int, end: int) -> int:
        """Where the last of the first stages begins, if they end there: it is cheaper the later,
        those before it are more expensive, and the least maximum lies where both meet."""
        others, beside = stages - 1, last if stages == num_stages else 0

        def own(start: int) -> float:
            return block * (end - start) + beside

        starts = range(others, end)
        meeting = bisect_left(starts, True, key=lambda start: least(others, start) >= own(start))
        return min(starts[max(0, meeting - 1) : meeting + 1], key=lambda start: max(least(others, start), own(start)))

    ends = [num_blocks]
    for stages in range(num_stages, 1, -1):
        ends.append(last_begins(stages, ends[-1]))
    return tuple(range(begin, end) for begin, end in pairwise([0, *reversed(ends)]))


def unit_blocks(sizes: Sequence[int], *, least: int) -> tuple[range, ...]:
    """Blocks of each FSDP unit: they join until it holds `least` parameters, the last may not."""
    units: list[range] = []
    begin = held = 0
    for index, size in enumerate(sizes):
        held += size
        if held >= least or index == len(sizes) - 1:
            units.append(range(begin, index + 1))
            begin, held = index + 1, 0
    return tuple(units)
