"""Which decoder blocks each pipeline stage holds, for planner and trainer alike.

Stages are balanced by cost, the mean of multiplied elements (FLOPs) and stored elements (bytes) of their parts.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

from shardwise.spec.model.shape import ModelShape


def stage_blocks(model: ModelShape, *, num_stages: int) -> tuple[range, ...]:
    """The block indices of each stage, in order; blocks of several kinds count at their mean cost. Raises ValueError:
    there are more stages than blocks."""
    multiplied = sum(k.num_layers * m.routed * m.rows * m.columns for k in model.kinds for m in k.matrices)
    return _balanced(
        num_blocks=model.num_layers,
        num_stages=num_stages,
        block=(multiplied + model.block_parameters) / 2 / model.num_layers,
        first=(model.embedding_parameters + model.position_parameters) / 2,
        last=float(model.embedding_parameters),
    )


@lru_cache(maxsize=1024)
def _balanced(*, num_blocks: int, num_stages: int, block: float, first: float, last: float) -> tuple[range, ...]:
    stages = stage_layers([block] * num_blocks, num_stages=num_stages, first_extra=first, last_extra=last)
    return tuple(stages)


def stage_layers(
    costs: list[float], *, num_stages: int, first_extra: float = 0.0, last_extra: float = 0.0
) -> list[range]:
    """Splits layers into contiguous pipeline stages so that the costliest stage is as cheap as possible.

    Dynamic programming over stages and layers; of equal cuts the earliest.

    Args:
        costs: cost of each layer (seconds, FLOPs or bytes; any one unit, none negative), length `num_layers`.
        num_stages: number of stages, at most `num_layers`.
        first_extra: cost of the embedding, borne by the first stage.
        last_extra: cost of the norm, head and loss, borne by the last stage.

    Returns:
        One range of layer indices per stage; every layer lies in exactly one.

    Raises:
        ValueError: there are more stages than layers.
    """
    num_layers = len(costs)
    if num_stages > num_layers:
        raise ValueError(f"{num_stages} pipeline stages for {num_layers} layers; use at most {num_layers}")
    totals = (0.0, *accumulate(costs))
    # In ascending order, so that each finds the one before it remembered.
    first = [_first_stages(totals, first_extra, count) for count in range(1, num_stages)]
    ends = [num_layers]
    if num_stages > 1:
        _, cut = _with_one_more(first[-1][0], totals, stage=num_stages - 1, extra=last_extra)
        for _, starts in reversed([*first[1:], (None, cut)]):
            ends.append(starts[ends[-1]])
    return [range(begin, end) for begin, end in pairwise([0, *reversed(ends)])]


@lru_cache(maxsize=4096)
def _first_stages(totals: tuple[float, ...], first_extra: float, count: int) -> tuple[list[float], list[int]]:
    """For each end of the first `count` stages: their least possible maximum, and where the last of them begins."""
    if count == 1:
        return [float("inf"), *(total + first_extra for total in totals[1:])], []
    least, _ = _first_stages(totals, first_extra, count - 1)
    return _with_one_more(least, totals, stage=count - 1, extra=0.0)


def _with_one_more(
    before: list[float], totals: tuple[float, ...], *, stage: int, extra: float
) -> tuple[list[float], list[int]]:
    """For each end, the least maximum with one more stage, and where that stage begins. A later start makes the stage
    cheaper and those before it more expensive. The least maximum lies where both are equal, and that start only grows
    with the end."""
    num_layers = len(totals) - 1
    least, cut = [float("inf")] * (num_layers + 1), [0] * (num_layers + 1)

    def maximum(start: int, end: int) -> float:
        return max(before[start], totals[end] - totals[start] + extra)

    meeting = stage
    for end in range(stage + 1, num_layers + 1):
        while meeting < end - 1 and before[meeting] < totals[end] - totals[meeting] + extra:
            meeting += 1
        start = meeting
        while start > stage and maximum(start - 1, end) <= maximum(start, end):
            start -= 1
        least[end], cut[end] = maximum(start, end), start
    return least, cut
