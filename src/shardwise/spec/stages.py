"""Which decoder blocks each pipeline stage holds: one answer, which the planner forecasts and the trainer builds.

Stages are balanced by what their parts cost, not by counting blocks. The cost of a part is the mean of the elements it
multiplies with (its FLOPs) and the elements it stores (its bytes): a block and the head do both, the embedding only
stores.
"""

from __future__ import annotations

from functools import lru_cache

from shardwise.spec.layout import stage_layers
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
