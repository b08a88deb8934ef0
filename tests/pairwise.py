"""Which cells of the slow tables CI runs: of each the one most unlike those of `make test`."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution


def processes(item: pytest.Item) -> int:
    """Of a cell that is, or is named in a table of its file as, a layout or an execution."""
    given = [*item.callspec.params.values()] if isinstance(item, pytest.Function) and hasattr(item, "callspec") else []
    tables = [table for table in vars(getattr(item, "module", None) or object).values() if isinstance(table, Mapping)]
    cells = given + [table[name] for table in tables for name in given if isinstance(name, str) and name in table]
    layouts = [cell.layout if isinstance(cell, Execution) else cell for cell in cells]
    return max((layout.world_size for layout in layouts if isinstance(layout, Layout)), default=1)


def mark_pairwise(items: Sequence[pytest.Item]) -> None:
    """Marks a cell of each slow table that names none; a test without parameters is one cell."""
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("rare") is not None:
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("timed") is None:
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in tables.values():
        slow = [item.get_closest_marker("slow") is not None for item in cells]
        if any(slow) and all(item.get_closest_marker("pairwise") is None for item in cells):
            chosen = most_unlike([_values(item) for item in cells], slow, [processes(item) for item in cells])
            cells[chosen].add_marker(pytest.mark.pairwise)


def _values(item: pytest.Item) -> dict[str, str]:
    spec = getattr(item, "callspec", None)
    return {} if spec is None else {name: repr(value) for name, value in spec.params.items()}


def most_unlike(cells: Sequence[Mapping[str, object]], slow: Sequence[bool], sizes: Sequence[int]) -> int:
    """The slow cell with most values, and pairs of values, that no fast cell has; of several that
    with nearest to two processes (`sizes`), and of these the last, as tables begin simple."""
    met = set[object]().union(*(_meets(cell) for cell, is_slow in zip(cells, slow, strict=True) if not is_slow))
    of = [at for at, is_slow in enumerate(slow) if is_slow]
    return max(of, key=lambda at: (len(_meets(cells[at]) - met), -abs(sizes[at] - 2), at))


def _meets(cell: Mapping[str, object]) -> set[object]:
    values = list(cell.items())
    return {*values, *combinations(values, 2)}
