"""Which cells of the slow tables CI runs: a small set, always the same, that meets every value or pair of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import pytest

T = TypeVar("T")

#: Cells of one table that CI runs at the most; of a table whose cells are trained many times over, one.
MOST_CELLS, MOST_COSTLY_CELLS = 4, 1


def mark_pairwise(items: Sequence[pytest.Item]) -> None:
    """Marks of each slow test the cells that CI runs; a test without parameters is one cell."""
    tables: dict[str, dict[pytest.Item, Mapping[str, object]]] = {}
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timed") is None:
            spec = getattr(item, "callspec", None)
            values = {} if spec is None else {name: repr(value) for name, value in spec.params.items()}
            tables.setdefault(item.nodeid.partition("[")[0], {})[item] = values
    for cells in tables.values():
        is_costly = any(item.get_closest_marker("costly") for item in cells)
        for item in evenly(cover(cells), MOST_COSTLY_CELLS if is_costly else MOST_CELLS):
            item.add_marker(pytest.mark.pairwise)


def cover(cells: Mapping[T, Mapping[str, object]]) -> list[T]:
    """Cells, chosen greedily, that hold every value; of three parameters or more, every pair of values that any holds.

    Args:
        cells: cell -> value of each parameter.
    """
    strength = max((len(values) for values in cells.values()), default=0)
    size = 2 if strength > 2 else min(1, strength)
    meets = {cell: {frozenset(met) for met in combinations(values.items(), size)} for cell, values in cells.items()}
    left = set[frozenset[tuple[str, object]]]().union(*meets.values())
    chosen = [] if left - {frozenset()} else [next(iter(cells))]
    while left - {frozenset()}:
        best = max(meets, key=lambda cell: len(meets[cell] & left))
        chosen.append(best)
        left -= meets.pop(best)
    return chosen


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many of some values, at even distances."""
    step = max(1, -(-len(values) // most))
    return list(values[::step])
