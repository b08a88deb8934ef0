"""How figures are written, in the terminal and on every page."""

from typing import Literal

from shardwise.units import format_bytes, format_seconds, printable

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
