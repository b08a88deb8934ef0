"""Which consecutive blocks FSDP gathers and reduces together, for planner and trainer alike."""

from __future__ import annotations

from collections.abc import Sequence


def unit_blocks(sizes: Sequence[int], *, least: int) -> tuple[range, ...]:
    """The block indices of each unit: blocks join until a unit holds `least` parameters; the last may hold fewer."""
    units: list[range] = []
    begin = held = 0
    for index, size in enumerate(sizes):
        held += size
        if held >= least or index == len(sizes) - 1:
            units.append(range(begin, index + 1))
            begin, held = index + 1, 0
    return tuple(units)
