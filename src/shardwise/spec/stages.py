"""Which decoder blocks each pipeline stage holds: one answer, which the planner forecasts and the trainer builds.

Stages are balanced by what their parts cost, not by counting blocks. The cost of a part is the mean of the elements it
multiplies with (its FLOPs) and the elements it stores (its bytes): a block and the head do both, the embedding only
stores.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise

from shardwise.spec.model import ModelShape


def stage_blocks(model: ModelShape, *, num_stages: int) -> tuple[range, ...]:
    """The indices of the blocks of each stage, from the first stage to the last.

    Args:
        model: any shape; blocks of several kinds count alike, at their mean cost.
        num_stages: stages of all pipeline ranks together.

    Raises:
        ValueError: there are more stages than blocks.
    """
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

    Stage by stage, for every number of layers that the stages so far may hold; of equal cuts the earliest. Takes
    `num_stages * num_layers` steps.

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
    totals = [0.0, *accumulate(costs)]
    extra = last_extra if num_stages == 1 else 0.0
    # least[end]: the least possible maximum when the stages so far hold layers 0..end-1.
    least = [float("inf"), *(total + first_extra + extra for total in totals[1:])]
    cuts: list[list[int]] = []
    for stage in range(1, num_stages):
        extra = last_extra if stage == num_stages - 1 else 0.0
        least, cut = _with_one_more(least, totals, stage=stage, extra=extra)
        cuts.append(cut)
    ends = [num_layers]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return [range(begin, end) for begin, end in pairwise([0, *reversed(ends)])]


def _with_one_more(
    before: list[float], totals: list[float], *, stage: int, extra: float
) -> tuple[list[float], list[int]]:
    """The least maxima with one stage more, and where it begins.

    For each end the later the stage begins, the less it costs and the more do those before it. The least maximum lies
    where these meet, and that place moves on with the end.
    """
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
