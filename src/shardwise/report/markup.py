"""HTML and SVG as text: escaped elements.

Every text and attribute passes through `escape`: names come from data that strangers wrote. Looks are
classes: one style sheet decides them for light and dark, and the content policy needs no inline styles.
"""

from __future__ import annotations

from html import escape as escape_markup

#: Controls other than tab and newline, and halves of surrogate pairs, which JSON can spell and UTF-8 cannot.
_UNPRINTABLE = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0xD800, 0xE000)), "\ufffd")


def printable(text: str) -> str:
    """The text with each control character and lone surrogate replaced: safe to show and to encode."""
    return text.translate(_UNPRINTABLE)


def escape(text: str) -> str:
    """Text that stands in an element or a quoted attribute as itself."""
    return escape_markup(printable(text), quote=True)


class Markup(str):
    """Text that is markup already: everything else is escaped when it becomes a child."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """`<tag attributes>children</tag>`.

    Args:
        tag: name of the element, ours.
        children: `Markup` stands as it is, any other text is escaped.
        attributes: `class_` is class, `_` becomes `-`; None leaves the attribute out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    if not inside and tag in VOID:
        return Markup(f"<{tag}{written}{'/' if tag in DRAWN else ''}>")
    return Markup(f"<{tag}{written}>{inside}</{tag}>")


DRAWN = frozenset({"rect", "line", "path", "circle"})
VOID = DRAWN | {"meta", "br"}


def _plain(value: str | float) -> str:
    """Coordinates with a tenth of a pixel, which no eye tells from the exact ones."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def join(parts: list[Markup] | tuple[Markup, ...]) -> Markup:
    """Markup after markup."""
    return Markup("".join(parts))
