"""Renders a template as one self-contained HTML file.

Jinja escapes every value. The content security policy allows this page's own style sheet and
scripts, by their hashes, and no network request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from shardwise.units import format_bytes, format_count, format_seconds, printable

if TYPE_CHECKING:
    from jinja2 import Environment

#: Characters that could end a script element, as JSON may write them.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def render(template: str, *, curves: list[dict[str, Any]] | None = None, **context: Any) -> str:
    """The page as text, from a file of `report/templates`; uPlot draws `curves`; None: no uPlot."""
    style, scripts = static_text("page.css"), [static_text("page.js")]
    if curves is not None:  # uPlot with its licence, which has to stay with every copy
        style = static_text("uplot.css") + style
        scripts.insert(0, f"/*!\n{static_text('uplot.LICENSE.txt')}*/\n{static_text('uplot.min.js')}")
    allowed = " ".join(map(_digest, scripts))
    sources = f"script-src {allowed}; style-src {_digest(style)}"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    drawn = None if curves is None else safe_json(curves)
    return render_part(template, **context, style=style, scripts=scripts, policy=policy, curves=drawn)


def render_part(template: str, **context: Any) -> str:
    """What stands inside such a page; its style sheet and scripts are `static_text`."""
    return report_templates().get_template(template).render(**context)


def safe_json(data: Any) -> str:
    """JSON that can stand inside a script element: ASCII only, without `<`, `>` and `&`."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def static_text(name: str) -> str:
    """A file of `report/static`."""
    return files("shardwise.report").joinpath("static", name).read_text(encoding="utf-8").strip() + "\n"


@cache
def report_templates() -> Environment:
    """What reads the templates of plans and reports."""
    # Imported here: only pages need it, and every command imports this module.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def percent(share: float) -> str:
        return f"{100 * share:.0f} %"

    def shown(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = Environment(
        loader=PackageLoader("shardwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {"bytes": format_bytes, "seconds": format_seconds, "count": format_count}
    environment.filters.update(filters, percent=percent)  # pyright: ignore[reportUnknownMemberType]
    return environment
