"""compare.html: one job under several layouts, as bars and as a table."""

from collections.abc import Mapping
from typing import Any

from shardwise.report.contents import Side
from shardwise.report.pages.charts import Bar, Chart, Segment, timeline_chart
from shardwise.report.pages.render import render
from shardwise.report.versus import COLUMNS, Contender, Versus
from shardwise.spec.plan.timeline import Timeline

CHARTS = ("step time", "GPU utilisation", "peak memory")

SIDES: tuple[tuple[Side, str], ...] = (("measured", "part main"), ("forecast", "part context"))


def versus_html(found: Versus, timelines: Mapping[str, Timeline] | None = None) -> str:
    """The whole page; `timelines` are forecast steps to draw, by layout."""
    return render("compare.html", **versus_context(found, timelines, heading="One job, several layouts"))


def versus_context(
    found: Versus, timelines: Mapping[str, Timeline] | None = None, *, heading: str, first: str = "Layout"
) -> dict[str, Any]:
    """What `compare_body.html` reads; `first`: what the first column is called."""
    return {
        "heading": heading,
        "first": first,
        "found": found,
        "columns": COLUMNS,
        "charts": [(name, bars_of(found, name)) for name in CHARTS],
        "timelines": [(layout, timeline_chart(timeline)) for layout, timeline in (timelines or {}).items()],
    }


def bars_of(found: Versus, name: str) -> Chart | None:
    """Two bars for each layout, measured and forecast, on one scale; None if nothing is known."""
    figures = [one.figure(name) for one in found.contenders]
    known = [value for figure in figures for value in (figure.measured, figure.forecast) if value is not None]
    if not known:
        return None
    high = 1.0 if figures[0].unit == "share" else max(known) or 1.0
    bars = [bar for one in found.contenders for bar in _bars(one, name, high=high)]
    return Chart(title=name, bars=tuple(bars), legend=tuple((look, side) for side, look in SIDES))


def _bars(one: Contender, name: str, *, high: float) -> list[Bar]:
    figure = one.figure(name)
    bars: list[Bar] = []
    for side, look in SIDES:
        if (value := getattr(figure, side)) is not None:
            total = figure.written(side)
            tip = f"{one.layout}: {name} {total} {side}"
            segment = Segment(look=look, start=0.0, width=100 * value / high, tip=tip)
            bars.append(Bar(label=one.layout, under=side, total=total, segments=(segment,), new=not bars))
    return bars
