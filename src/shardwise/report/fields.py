"""Reads single values from files that may be damaged, where a value of the wrong type is None; and
how figures are written, in the terminal and on every page."""

from collections.abc import Iterable
from typing import Any, Literal, cast

from shardwise.units import format_bytes, format_seconds, printable

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


Unit = Literal["bytes", "seconds", "tokens_per_second", "share"]

#: Said where times were forecast at rates that stand in for those of the machine.
NOMINAL_TIMES = "forecast times are nominal: the rates of this machine's CPU processes were not measured"

MISSING = "–"


def one_line(text: str) -> str:
    """Printable text on one line, so that a name cannot control a terminal."""
    return printable(" ".join(text.split()))


def write_value(value: float, unit: Unit) -> str:
    """A figure with its unit."""
    match unit:
        case "bytes":
            return format_bytes(value)
        case "seconds":
            return write_seconds(value)
        case "tokens_per_second":
            return f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"
        case "share":
            return f"{100 * value:.1f} %" if value == 0 or abs(value) >= 0.01 else f"{100 * value:.2g} %"


def write_seconds(seconds: float) -> str:
    """`format_seconds`, with milliseconds below a tenth of a second."""
    return f"{1000 * seconds:.3g} ms" if 0 < seconds < 0.1 else format_seconds(seconds)


def write_power(value: float) -> str:
    """A learning rate: `1.5e-4`."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return "0" if value == 0 else f"{float(mantissa):g}e{int(exponent)}"


def write_error(percent: float | None) -> str:
    """A forecast's error: `+2.1 %`; a dash where there is none to state."""
    if percent is None:
        return MISSING
    if percent == 0:
        return "exact"
    return f"{percent:+,.1f} %" if abs(percent) < 1000 else f"{percent:+,.0f} %"
