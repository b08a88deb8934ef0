"""Which values of a table `make test` runs, where one proves much the same as the next; `make test-all` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a table, tuples for several names, of which all but one in so many are marked slow."""
    return [_parameter(value, slow=index % count > 0) for index, value in enumerate(values)]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a table, of which all but the first `count` are marked slow."""
    return [_parameter(value, slow=index >= count) for index, value in enumerate(values)]


def rare_but_first(values: Iterable[Any]) -> list[Any]:
    """Parameters of a table that CI runs one cell of."""
    kept, *others = values
    return [kept, *(pytest.param(value, marks=pytest.mark.rare) for value in others)]


def _parameter(value: Any, *, slow: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [])
