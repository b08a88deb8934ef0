"""compare.html: the layouts side by side as bars and as a table, on one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardwise.report.bars import SIDES, Bar, bar_chart
from shardwise.report.markup import Markup, element
from shardwise.report.nouns import Unit
from shardwise.report.page import legend_of, page
from shardwise.report.text import write_value
from shardwise.report.timeline_chart import timeline_panel
from shardwise.report.versus import COLUMNS, Contender, Versus
from shardwise.spec.timeline import Timeline

CHARTS = ("step time", "GPU utilisation", "peak memory")
WIDTH = 940

FOOT = "Times are medians of the steps after the warm-up; memory is that of the rank that needs most."


def versus_html(found: Versus, timelines: Mapping[str, Timeline] | None = None) -> str:
    """The whole page.

    Args:
        timelines: steps to draw, as forecast, by layout.
    """
    heading = element(
        "header",
        element("p", f"Shardwise compare · {found.job}", class_="eyebrow"),
        element("h1", "One job, several layouts"),
        element("p", found.sentence, class_="facts"),
        *(element("p", note, class_="facts") for note in found.notes),
    )
    charts = [_chart(found, name) for name in CHARTS]
    return page(
        heading,
        *charts,
        *_steps(timelines or {}),
        _table(found),
        _ranks(found),
        _listed("Failed", [(one.layout, one.reason) for one in found.failed]),
        _listed("Cannot run here", found.unable),
        title=f"{found.job} – Shardwise compare",
        foot=FOOT,
    )


def _chart(found: Versus, name: str) -> Markup:
    figures = [(one.layout, one.figure(name)) for one in found.contenders]
    bars = [Bar(name=layout, measured=figure.measured, forecast=figure.forecast) for layout, figure in figures]
    write = _writer(figures[0][1].unit) if figures else str
    drawn = bar_chart(bars, ident=name.replace(" ", "-"), title=name, width=WIDTH, write=write)
    legend = legend_of([(look, side) for side, look in SIDES])
    return element(
        "section", element("div", element("h2", _headed(name)), legend, class_="titled"), drawn, class_="panel"
    )


def _steps(timelines: Mapping[str, Timeline]) -> list[Markup]:
    return [
        timeline_panel(f"One step of {layout}, as forecast", timeline, ident=f"step-{number}", width=WIDTH)
        for number, (layout, timeline) in enumerate(timelines.items())
    ]


def _headed(name: str) -> str:
    """With a capital, and `GPU` as it is."""
    return name[:1].upper() + name[1:]


def _writer(unit: Unit) -> Callable[[float], str]:
    return lambda value: write_value(value, unit)


def _table(found: Versus) -> Markup:
    names = ("Layout", "Processes", *map(_headed, COLUMNS), "Final loss")
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    body = element("tbody", *map(_row, found.contenders))
    table = element("div", element("table", head, body), class_="scroll")
    return element("section", element("h2", "Measured, and forecast"), table, class_="panel")


def _row(one: Contender) -> Markup:
    figures = [
        element(
            "td",
            element("div", one.written(name, "measured")),
            element("div", f"forecast {one.written(name, 'forecast')}", class_="under"),
        )
        for name in COLUMNS
    ]
    name, processes = element("th", element("code", one.name), scope="row"), element("td", str(one.processes))
    return element("tr", name, processes, *figures, element("td", one.final_loss_written))


def _ranks(found: Versus) -> Markup:
    lines = [element("li", f"{one.layout}: {one.by_rank}") for one in found.contenders if one.ranks]
    return element("section", element("h2", "By rank"), element("ul", *lines), class_="panel") if lines else Markup("")


def _listed(heading: str, reasons: Sequence[tuple[str, str]]) -> Markup:
    """Layouts that have no row, each with its reason."""
    if not reasons:
        return Markup("")
    lines = [element("li", f"{layout}: {reason}") for layout, reason in reasons]
    return element("section", element("h2", heading), element("ul", *lines), class_="notice")
