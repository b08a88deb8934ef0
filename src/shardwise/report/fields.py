"""Reads single values from files that may be damaged; a value of the wrong type is None."""

from collections.abc import Iterable
from typing import Any, cast

LARGEST = 1e18


def as_number(value: object) -> float | None:
    """A finite number of at most `LARGEST`, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def as_whole(value: object) -> int | None:
    """A non-negative integer, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LARGEST else None


def _value(data: object, key: str) -> Any:
    return cast(dict[str, Any], data).get(key) if isinstance(data, dict) else None


def number(data: object, key: str) -> float | None:
    """The finite number of a key, or None."""
    return as_number(_value(data, key))


def numbers(records: Iterable[object], key: str) -> list[float]:
    """The finite numbers of those records that have the key."""
    return [value for record in records if (value := number(record, key)) is not None]


def whole(data: object, key: str) -> int | None:
    """The non-negative integer of a key, or None."""
    return as_whole(_value(data, key))


def wholes(records: Iterable[object], key: str) -> list[int]:
    """The non-negative integers of those records that have the key."""
    return [value for record in records if (value := whole(record, key)) is not None]


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
