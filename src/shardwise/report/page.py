"""The frame of every page: no script, no request; a stranger's name becomes nothing but text.

The content policy names the hash of the page's one style sheet and forbids everything else, so even a mistake
in escaping could neither run nor fetch anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from shardwise.report.markup import Markup, element


def page(*sections: Markup, title: str, foot: str) -> str:
    """A whole document, with the style sheet inside."""
    style = files("shardwise.report").joinpath("report.css").read_text(encoding="utf-8")
    footer = element("footer", f"{foot} This page is self-contained and loads nothing.")
    body = element("body", element("main", *sections), footer)
    return "<!doctype html>\n" + element("html", _head(title, style), body, lang="en") + "\n"


def _head(title: str, style: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )


def legend_of(entries: Sequence[tuple[str, str]]) -> Markup:
    """(class, name) pairs as swatches; the charts themselves describe their marks to screen readers."""
    return element(
        "ul",
        *(element("li", element("span", class_=f"swatch {look}", aria_hidden="true"), name) for look, name in entries),
        class_="legend",
    )
