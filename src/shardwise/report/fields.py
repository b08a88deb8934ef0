"""Reads single values from files that may be damaged; a value of the wrong type is None."""

from __future__ import annotations

from typing import Any, cast

LARGEST = 1e18


def as_number(value: object) -> float | None:
    """A finite number of at most `LARGEST`, or None."""
    if isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST and value is not True and value is not False:
        return float(value)
    return None


def as_whole(value: object) -> int | None:
    """A non-negative integer, or None."""
    if isinstance(value, int) and 0 <= value <= LARGEST and value is not True and value is not False:
        return value
    return None


def _value(data: object, key: str) -> Any:
    """A key's value; None where there is no such key, or `data` is not an object."""
    found: Any = data
    return found.get(key) if isinstance(data, dict) else None


def number(data: object, key: str) -> float | None:
    """The finite number of a key, or None."""
    return as_number(_value(data, key))


def whole(data: object, key: str) -> int | None:
    """The non-negative integer of a key, or None."""
    return as_whole(_value(data, key))


def text(data: object, key: str) -> str | None:
    """A string, or None."""
    value = _value(data, key)
    return value if isinstance(value, str) else None


def section(data: object, key: str) -> dict[str, Any] | None:
    """An object, or None."""
    value = _value(data, key)
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def items(data: object, key: str) -> list[Any]:
    """A list; empty where there is none."""
    value = _value(data, key)
    return cast(list[Any], value) if isinstance(value, list) else []


def sections(data: object, key: str) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [cast(dict[str, Any], item) for item in items(data, key) if isinstance(item, dict)]
