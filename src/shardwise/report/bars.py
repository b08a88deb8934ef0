"""Bars: one figure of several runs, each measured above its forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.report.charts import LABEL_WIDTH, empty_chart
from shardwise.report.markup import Markup, element, join
from shardwise.report.svg import Scale, drawing

BAR_HEIGHT = 13.0
ROW_HEIGHT = 42.0

#: (side, class of the style sheet)
SIDES = (("measured", "part weights"), ("forecast", "part context"))


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One run's figure; None draws no bar."""

    name: str
    measured: float | None
    forecast: float | None


def bar_chart(bars: Sequence[Bar], *, ident: str, title: str, width: int, write: Callable[[float], str]) -> Markup:
    """A row for each run, in the order given, both of its bars to one scale; `write` puts a value into words."""
    values = [value for bar in bars for value in (bar.measured, bar.forecast) if value is not None]
    if not values:
        return empty_chart(ident=ident, title=title, width=width, height=120)
    left = 14 + LABEL_WIDTH * max(len(bar.name) for bar in bars)
    right = width - 14 - LABEL_WIDTH * max(len(write(value)) for value in values)
    across = Scale(low=0, high=max(values) or 1.0, start=left, end=right)
    rows = [_row(bar, y=6 + index * ROW_HEIGHT, across=across, write=write) for index, bar in enumerate(bars)]
    return drawing(
        *rows,
        ident=ident,
        title=title,
        description="; ".join(_described(bar, write) for bar in bars),
        width=width,
        height=round(6 + len(bars) * ROW_HEIGHT),
    )


def _row(bar: Bar, *, y: float, across: Scale, write: Callable[[float], str]) -> Markup:
    name = element("text", bar.name, x=0, y=y + 18, class_="rank")
    drawn = [
        _bar(side, look, value, y=y + index * (BAR_HEIGHT + 3), across=across, write=write)
        for index, ((side, look), value) in enumerate(zip(SIDES, (bar.measured, bar.forecast), strict=True))
        if value is not None
    ]
    return join([name, *drawn])


def _bar(side: str, look: str, value: float, *, y: float, across: Scale, write: Callable[[float], str]) -> Markup:
    words = element("title", f"{side}: {write(value)}")
    start, end = across(0), across(value)
    rect = element("rect", words, x=start, y=y, width=end - start, height=BAR_HEIGHT, class_=look)
    return join([rect, element("text", write(value), x=end + 6, y=y + 10.5, class_="tick total")])


def _described(bar: Bar, write: Callable[[float], str]) -> str:
    sides = (("measured", bar.measured), ("forecast", bar.forecast))
    known = [f"{side} {write(value)}" for side, value in sides if value is not None]
    return f"{bar.name}: {', '.join(known) or 'not measured'}"
