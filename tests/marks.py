"""Which values of a table `make test` runs, where one proves much the same as the next; `make test-all` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a table, tuples for several names, of which all but one in so many are marked slow."""
    return [_parameter(value, slow=index % count > 0) for index, value in enumerate(values)]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a table, of which all but the first `count` are marked slow."""
    return [_parameter(value, slow=index >= count) for index, value in enumerate(values)]


def _parameter(value: Any, *, slow: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=[pytest.mark.slow] if slow else [])
