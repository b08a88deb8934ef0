"""Which values of a table `make test` runs, where one proves much the same as the next; CI runs some more, and
`make test-all` runs all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

#: Of a test or of a cell that `make test` leaves to CI.
CI = (pytest.mark.slow, pytest.mark.pairwise)


def every(count: int, values: Iterable[Any], *, ci: int = 0) -> list[Any]:
    """Parameters of a table, tuples for several names, of which all but one in `count` are marked slow; of these CI
    runs one in `ci`."""
    return [
        _parameter(value, () if index % count == 0 else CI if ci and index % ci == 0 else CI[:1])
        for index, value in enumerate(values)
    ]


def first(count: int, values: Iterable[Any], *, ci: int = 0) -> list[Any]:
    """Parameters of a table, of which all but the first `count` are marked slow; of these CI runs the first `ci`."""
    return [
        _parameter(value, () if index < count else CI if index < count + ci else CI[:1])
        for index, value in enumerate(values)
    ]


def rare_but_first(values: Iterable[Any]) -> list[Any]:
    """Parameters of a table that CI runs one cell of."""
    kept, *others = values
    return [kept, *(pytest.param(value, marks=pytest.mark.rare) for value in others)]


def _parameter(value: Any, marks: Collection[pytest.MarkDecorator]) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)
