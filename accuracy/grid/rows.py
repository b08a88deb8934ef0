"""The rows of a cell, and what the forwards of each step were given of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from accuracy.grid.cells import Cell
from shardwise.data.order import epoch_order
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import padded_length

#: Optimizer steps of a cell, the first of which is not measured.
STEPS = 6
#: Tokens of a row that is shorter than `max_length`, as shares of it, in turn.
_SHARES = (0.7, 0.35)


class Forwards(NamedTuple):
    """Of a step: tokens of the longest row, with padding, and trained positions of all rows of one rank, in its first
    forward and in the later one."""

    lengths: tuple[int, ...]
    trained: tuple[int, ...]


def words_of_row(cell: Cell, index: int) -> int:
    """Each is one token; one more ends the row."""
    return cell.length if cell.rows == "whole" else int(_SHARES[index % len(_SHARES)] * cell.length)


def measured_forwards(cell: Cell, job: Job, layout: Layout, *, rank: int) -> Iterator[Forwards]:
    """Of every step that was measured. Rows of a step are sorted as the trainer sorts them, and padded to the longest
    of all ranks; none is packed."""
    size, ranks = job.train.global_batch_size, layout.data_world_size
    tokens = np.array([min(words_of_row(cell, index) + 1, cell.length) for index in range(STEPS * size)])
    order = epoch_order(
        np.zeros(len(tokens), np.uint16), weights=[1.0], seed=job.train.seed, epoch=0, shuffle=job.data.shuffle
    )
    for step in range(1, STEPS):
        rows = np.sort(tokens[order[step * size : (step + 1) * size]])[::-1].reshape(cell.accumulation, ranks, -1)
        padded = (padded_length(int(micro.max()), max_length=cell.length) for micro in rows)
        multiple = layout.sequence_multiple
        yield Forwards(
            lengths=tuple(-(-length // multiple) * multiple for length in padded),
            trained=tuple(int((micro[layout.data_rank(rank)] - 1).sum()) for micro in rows),
        )
