"""Bytes, counts, rates and seconds: how they are written for people."""

from collections.abc import Iterable

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4


def format_bytes(count: float) -> str:
    """Bytes in binary units with three significant figures: `48.0 GiB`, `612 MiB`."""
    sign = "-" if count < 0 else ""
    value = abs(float(count))
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop()
    unit = units[-1]
    if unit == "B":
        return f"{sign}{value:.0f} B"
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{sign}{value:.{decimals}f} {unit}"


def format_count(count: float) -> str:
    """A number of things with a decimal suffix: `8.03B`, `1.10M`, `512`."""
    value = float(count)
    suffixes = ["T", "B", "M", "k", ""]
    # From where three figures would round up to a thousand.
    while abs(value) >= 999.5 and len(suffixes) > 1:
        value /= 1000
        suffixes.pop()
    suffix = suffixes[-1]
    return f"{value:.3g}{suffix}" if suffix and abs(value) < 999.5 else f"{value:,.0f}{suffix}"


def format_seconds(seconds: float) -> str:
    """A duration for people: `28.8 ms`, `0.42 s`, `59 s`, `3 min 53 s`, `5 h 02 min`, `3 d 4 h`."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks for people, in order, and runs of them by their ends: `rank 4`, `ranks 0-6, 9`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    named = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank {named}" if named.isdigit() else f"ranks {named}"


def format_gib(count: int) -> str:
    """GiB throughout a sentence, for comparable figures; smaller units where they'd read 0.0."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else format_bytes(count)


#: Control characters except tab and newline, and lone surrogates: JSON can hold them, UTF-8 cannot.
_UNPRINTABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0xD800, 0xE000)), "\ufffd")


def printable(text: str) -> str:
    """The text with control characters and lone surrogates replaced: safe to show and encode."""
    return text.translate(_UNPRINTABLE)
