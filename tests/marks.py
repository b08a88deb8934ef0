"""Which values of a table `make test` runs, where one proves much the same as the next."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: Of a test or of a cell that `make test` leaves to CI.
CI = (pytest.mark.slow, pytest.mark.pairwise)


def every(count: int, values: Iterable[Any], *, ci: int = 0) -> list[Any]:
    """Parameters, tuples for several names; one in `count` is fast, one in `ci` is of CI."""
    return _marked(values, lambda index: index % count == 0, lambda index: ci and index % ci == 0)


def first(count: int, values: Iterable[Any], *, ci: int = 0) -> list[Any]:
    """Parameters of which the first `count` are fast; of the others CI runs the first `ci`."""
    return _marked(values, lambda index: index < count, lambda index: index < count + ci)


def rare_but_first(values: Iterable[Any]) -> list[Any]:
    """Parameters of a table that CI runs one cell of."""
    kept, *others = values
    return [kept, *(pytest.param(value, marks=pytest.mark.rare) for value in others)]


def _marked(values: Iterable[Any], fast: Callable[[int], bool], ci: Callable[[int], object]) -> list[Any]:
    made: list[Any] = []
    for index, value in enumerate(values):
        marks = () if fast(index) else CI if ci(index) else CI[:1]
        made.append(pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks))
    return made
