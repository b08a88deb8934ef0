"""Values of a row: how text is read from a column, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


class RowError(Exception):
    """What is wrong with one row, as a sentence; the reader knows where the row stands."""


def text_of(row: Row, column: str, *, may_be_empty: bool = False, of: str = "") -> str:
    """The text in a column; `of` is what messages write before the column's name.

    Raises:
        RowError: it holds something else, or nothing.
    """
    value = row.get(column)
    name = f"{of}{column}"
    if not isinstance(value, str):
        raise RowError(f"{name} is {shown(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowError(f"{name} is empty; expected text to train on")
    return value


def shown(value: Any) -> str:
    """A stranger's value in a message: short."""
    names = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}
    if type(value) in names:
        return names[type(value)]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
