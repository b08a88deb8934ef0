"""What charts are made of: scales, round ticks, and the accessible frame."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.report.markup import Markup, element, join


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear map from [low, high] to [start, end] pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value; the middle where the range is empty."""
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) inside [low, high], at most `most`.

    One tick where the range is empty or too narrow for labels to differ.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-20):
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most - 1 + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def title_and_description(ident: str, title: str, description: str) -> Markup:
    """What a screen reader says of a chart; the chart names both by id."""
    return join([element("title", title, id=f"{ident}-title"), element("desc", description, id=f"{ident}-desc")])


def drawing(*children: Markup, ident: str, title: str, description: str, width: int, height: int) -> Markup:
    """An accessible, scalable SVG image of `width` × `height` units."""
    return element(
        "svg",
        title_and_description(ident, title, description),
        *children,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=f"{ident}-title",
        aria_describedby=f"{ident}-desc",
        class_="chart",
    )
