"""Forecast over measured as one picture without dependencies: logarithmic both ways, a colour for each source."""

from __future__ import annotations

import math
from collections.abc import Sequence

from accuracy.compare import Comparison
from accuracy.svg import Markup, Scale, element, join

_SIZE, _LEFT, _TOP, _LEGEND = 420.0, 66.0, 34.0, 210.0
_COLOURS = (
    "#1f6feb",
    "#d1495b",
    "#2a9d8f",
    "#e9a23b",
    "#7b5ea7",
    "#5a6472",
    "#c06c84",
    "#3f88c5",
    "#88a22b",
    "#8d5524",
)
_INK, _FAINT = "#24292f", "#c9ced4"


def scatter(comparisons: Sequence[Comparison], *, title: str, unit: str, unit_size: float = 1.0) -> str:
    """A standalone SVG file: one dot for each comparison, the diagonal, and a quarter to either side of it."""
    points = [(c.source, c.measured / unit_size, c.forecast / unit_size) for c in comparisons]
    values = [value for _, *both in points for value in both]
    low, high = math.log10(min(values) * 0.8), math.log10(max(values) * 1.25)
    across = Scale(low=low, high=high, start=_LEFT, end=_LEFT + _SIZE)
    up = Scale(low=low, high=high, start=_TOP + _SIZE, end=_TOP)
    sources = sorted({c.source for c in comparisons})
    colours = {source: _COLOURS[index % len(_COLOURS)] for index, source in enumerate(sources)}
    drawn = element(
        "svg",
        element("title", title),
        element("rect", x=0, y=0, width=_LEFT + _SIZE + _LEGEND, height=_TOP + _SIZE + 52, fill="#ffffff"),
        _frame(across, up, low=low, high=high, title=title, unit=unit),
        join([_dot(x, y, across, up, colours[source]) for source, x, y in points]),
        _legend(comparisons, colours),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_LEFT + _SIZE + _LEGEND:.0f} {_TOP + _SIZE + 52:.0f}",
        font_family="sans-serif",
        font_size=12,
        role="img",
    )
    return f"{drawn}\n"


def _dot(measured: float, forecast: float, across: Scale, up: Scale, colour: str) -> Markup:
    at = {"cx": across(math.log10(measured)), "cy": up(math.log10(forecast))}
    return element("circle", r=3, fill=colour, fill_opacity=0.6, **at)


def _frame(across: Scale, up: Scale, *, low: float, high: float, title: str, unit: str) -> Markup:
    parts = [
        _text(title, x=_LEFT, y=20, weight="bold"),
        _text(f"measured, {unit}", x=_LEFT + _SIZE / 2, y=_TOP + _SIZE + 40, anchor="middle"),
        element(
            "text",
            f"forecast, {unit}",
            x=0,
            y=0,
            fill=_INK,
            text_anchor="middle",
            transform=f"translate(16 {_TOP + _SIZE / 2:.0f}) rotate(-90)",
        ),
    ]
    for tick in _ticks(low, high):
        x, y = across(math.log10(tick)), up(math.log10(tick))
        parts += [
            _line(x, _TOP, x, _TOP + _SIZE, _FAINT),
            _line(_LEFT, y, _LEFT + _SIZE, y, _FAINT),
            _text(f"{tick:,.10g}", x=x, y=_TOP + _SIZE + 18, anchor="middle"),
            _text(f"{tick:,.10g}", x=_LEFT - 8, y=y + 4, anchor="end"),
        ]
    for factor, dash in ((1.0, None), (1.25, "4 4"), (0.75, "4 4")):
        shift = math.log10(factor)
        start, end = max(low, low - shift), min(high, high - shift)
        parts.append(_line(across(start), up(start + shift), across(end), up(end + shift), _INK, dash=dash))
    return join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, or powers alone where those would crowd."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    return [step * 10.0**decade for decade in decades for step in steps if low <= math.log10(step) + decade <= high]


def _legend(comparisons: Sequence[Comparison], colours: dict[str, str]) -> Markup:
    parts: list[Markup] = []
    for index, (source, colour) in enumerate(colours.items()):
        y = _TOP + 12 + 19 * index
        count = sum(c.source == source for c in comparisons)
        parts.append(element("circle", cx=_LEFT + _SIZE + 18, cy=y - 4, r=4, fill=colour))
        parts.append(_text(f"{source} ({count})", x=_LEFT + _SIZE + 28, y=y))
    return join(parts)


def _text(words: str, *, x: float, y: float, anchor: str = "start", weight: str | None = None) -> Markup:
    return element("text", words, x=x, y=y, fill=_INK, text_anchor=anchor, font_weight=weight)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str | None = None) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_dasharray=dash)
