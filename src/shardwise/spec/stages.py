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
    `num_stages * num_layers` steps, and `num_layers` where fewer or more stages of the same layers were asked for.

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
    cuts: list[list[int]] = []
    if num_stages > 1:
        before = _before(tuple(costs), first_extra)
        cuts += before.cuts(num_stages - 2)
        cuts.append(before.with_one_more(num_stages - 1, extra=last_extra)[1])
    ends = [num_layers]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return [range(begin, end) for begin, end in pairwise([0, *reversed(ends)])]


@lru_cache(maxsize=16)
def _before(costs: tuple[float, ...], first_extra: float) -> _Before:
    return _Before(costs, first_extra)


class _Before:
    """The stages before the last one, which are the same however many follow: found once for every number of stages."""

    def __init__(self, costs: tuple[float, ...], first_extra: float) -> None:
        self._totals = [0.0, *accumulate(costs)]
        # least[end]: the least possible maximum when the stages so far hold layers 0..end-1.
        first = [float("inf"), *(total + first_extra for total in self._totals[1:])]
        self._found: list[tuple[list[float], list[int]]] = [(first, [])]

    def cuts(self, stage: int) -> list[list[int]]:
        """For each end where a stage begins, of all stages behind the first up to this one."""
        while len(self._found) <= stage:
            self._found.append(self.with_one_more(len(self._found), extra=0.0))
        return [cut for _, cut in self._found[1 : stage + 1]]

    def with_one_more(self, stage: int, *, extra: float) -> tuple[list[float], list[int]]:
        """The least maxima with this stage too, which bears some extra cost, and where it begins."""
        least, _ = self._found[stage - 1]
        return _with_one_more(least, self._totals, stage=stage, extra=extra)


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
