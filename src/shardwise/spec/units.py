"""Which consecutive blocks are gathered and reduced together: one answer, which the planner forecasts and the trainer
builds."""

from __future__ import annotations

from collections.abc import Sequence


def unit_blocks(sizes: Sequence[int], *, least: int) -> tuple[range, ...]:
    """The indices of the blocks of each unit, from the first to the last.

    Blocks join a unit until it holds at least so many parameters; what is left at the end is a smaller one.

    Args:
        sizes: parameters of each block, as a whole: before anything is sliced or sharded.
        least: parameters of a unit; 0 makes every block a unit of its own.
    """
    units: list[range] = []
    begin = held = 0
    for index, size in enumerate(sizes):
        held += size
        if held >= least or index == len(sizes) - 1:
            units.append(range(begin, index + 1))
            begin, held = index + 1, 0
    return tuple(units)
