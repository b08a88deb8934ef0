"""Reading single values out of files that a crash, another version or a stranger may have written.

A value of the wrong kind is treated as absent (None), which the report then names; it never becomes a number.
"""

from __future__ import annotations

import math
from typing import Any, cast

#: More than any figure of a run, and safely inside what a float, a chart and JSON can carry.
LARGEST = 1e18


def number(data: dict[str, Any] | None, key: str) -> float | None:
    """A finite number of sensible size, or None."""
    value = (data or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -LARGEST <= value <= LARGEST and math.isfinite(value) else None


def whole(data: dict[str, Any] | None, key: str) -> int | None:
    """A whole number that is not negative, or None."""
    value = (data or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LARGEST else None


def text(data: dict[str, Any] | None, key: str) -> str | None:
    """A string, or None."""
    value = (data or {}).get(key)
    return value if isinstance(value, str) else None


def section(data: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    """An object, or None."""
    value = (data or {}).get(key)
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def items(data: dict[str, Any] | None, key: str) -> list[Any]:
    """A list; empty where there is none."""
    value = (data or {}).get(key)
    return cast(list[Any], value) if isinstance(value, list) else []


def sections(data: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [cast(dict[str, Any], item) for item in items(data, key) if isinstance(item, dict)]
