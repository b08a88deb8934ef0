"""SVG as text: escaped elements, and a linear scale."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


class Markup(str):
    """Text that is markup already; `element` escapes everything else."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """`<tag attributes>children</tag>`; `_` in a name becomes `-`, and None leaves an attribute out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{tag}{written}>{inside}</{tag}>" if inside or tag == "text" else f"<{tag}{written}/>")


def _plain(value: str | float) -> str:
    """Coordinates with a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def join(parts: list[Markup]) -> Markup:
    """Markup after markup."""
    return Markup("".join(parts))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear map from [low, high] to [start, end] pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
