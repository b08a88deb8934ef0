"""The page's sections that are words and numbers: cards, the table, data, settings, checks and files."""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.report.markup import Markup, element, join
from shardwise.report.nouns import CONFIGURED_TYPES, Check, Comparison, DataCounts, Example, Report, Setting
from shardwise.report.text import NOT_MEASURED, Row, table_rows, write_error, write_value
from shardwise.units import format_bytes

#: Cards after the loss, in order: name of the comparison.
CARDS = ("peak memory", "step time", "throughput", "MFU", "GPU utilisation", "total time")

COUNT_NAMES = {
    "num_rows": "rows",
    "num_samples": "samples",
    "num_tokens": "tokens",
    "num_trained_tokens": "trained tokens",
    "longest": "longest row, tokens",
    "num_truncated": "rows truncated",
    "num_dropped": "rows dropped",
}


def card_row(report: Report) -> Markup:
    """The key figures, each with what was forecast."""
    compared = [row for name in CARDS if (row := report.comparison(name)) is not None]
    cards = (_loss_card(report), *map(_card_of, compared), _tokens_card(report))
    return element("section", *cards, class_="cards", aria_label="Key figures")


def _card(name: str, value: str, under: str) -> Markup:
    missing = " missing" if value == NOT_MEASURED else ""
    return element(
        "div",
        element("p", name, class_="label"),
        element("p", value, class_=f"value{missing}"),
        element("p", under, class_="under"),
        class_="card",
    )


def _loss_card(report: Report) -> Markup:
    loss, held_out = report.curves["loss"], report.curves["eval_loss"]
    if loss.first is None or loss.last is None:
        return _card("loss", NOT_MEASURED, "no step recorded")
    under = f"from {loss.first:.4g}" + (f", eval {held_out.last:.4g}" if held_out.last is not None else "")
    return _card("loss", f"{loss.last:.4g}", under)


def _tokens_card(report: Report) -> Markup:
    if report.tokens is None:
        return _card("tokens seen", NOT_MEASURED, "no step has counted them")
    trained = report.trained_tokens
    return _card("tokens seen", f"{report.tokens:,}", "" if trained is None else f"{trained:,} counted in the loss")


def _card_of(row: Comparison) -> Markup:
    value = NOT_MEASURED if row.measured is None else write_value(row.measured, row.unit)
    if row.forecast is None:
        return _card(row.what, value, "not forecast")
    error = f" ({write_error(row.error_percent)})" if row.error_percent is not None else ""
    return _card(row.what, value, f"forecast {write_value(row.forecast, row.unit)}{error}".replace(" %", "\u00a0%"))


def table_section(report: Report) -> Markup:
    """Forecast, measured, error: row by row."""
    rows = [_table_row(row, comparison) for row, comparison in zip(table_rows(report), report.comparisons, strict=True)]
    head = _head(("", None), ("Forecast", "number"), ("Measured", "number"), ("Error", "number"), ("Covers", "covers"))
    table = element("table", head, element("tbody", *rows), class_="comparison")
    return element(
        "section",
        element("h2", "Forecast and measurement"),
        element("div", table, class_="scroll"),
        _forecast_parts(report),
        class_="panel",
    )


def _head(*columns: tuple[str, str | None]) -> Markup:
    """(name, class) of each column."""
    names = [element("th", name, scope="col", class_=look) for name, look in columns]
    return element("thead", element("tr", *names))


def _table_row(row: Row, comparison: Comparison) -> Markup:
    def figure(written: str, value: float | None) -> Markup:
        return element("td", written, class_="number" if value is not None else "number missing")

    return element(
        "tr",
        element("th", row.what, scope="row", class_="indent" if row.indent else None),
        figure(row.forecast, comparison.forecast),
        figure(row.measured, comparison.measured),
        element("td", row.error, class_=f"number error {_tone(comparison.error_percent)}"),
        element("td", row.note, class_="covers"),
    )


def _tone(error_percent: float | None) -> str:
    """Within 5 % is near and beyond 15 % is far: the accuracy promised for memory and for time."""
    if error_percent is None:
        return "none"
    return "near" if abs(error_percent) <= 5 else "fair" if abs(error_percent) <= 15 else "far"


def _forecast_parts(report: Report) -> Markup:
    """All parts of the worst rank's forecast, finer than what can be measured."""
    worst = report.memory.worst
    if worst is None or not worst.forecast_parts:
        return Markup("")
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in worst.forecast_parts.items())
    return element("p", f"Forecast of rank {worst.rank} in full: {parts}.", class_="note")


def example_section(report: Report) -> Markup:
    """What was trained on: counts by split, and rows as the model saw them."""
    if not report.data and not report.examples:
        return Markup("")
    counts = [_counts(split) for split in report.data]
    examples = [_example(example) for example in report.examples]
    legend = element(
        "p",
        "Rows as the model saw them; ",
        element("mark", "marked"),
        " tokens count in the loss.",
        class_="note",
    )
    shown = [legend, *examples] if examples else []
    return element("section", element("h2", "Data"), element("div", *counts, class_="columns"), *shown, class_="panel")


def _counts(data: DataCounts) -> Markup:
    facts = [
        Setting(name=name, value=f"{data.counts[key]:,}") for key, name in COUNT_NAMES.items() if key in data.counts
    ]
    tokens, trained = data.counts.get("num_tokens"), data.counts.get("num_trained_tokens")
    if tokens and trained is not None:
        facts.append(Setting(name="share trained", value=f"{100 * trained / tokens:.1f} %"))
    facts.append(Setting(name="sources", value=", ".join(data.sources) or "not recorded"))
    return _facts({"train": "Training", "eval": "Evaluation"}[data.split], facts)


def _example(example: Example) -> Markup:
    pieces = [element("mark", text) if trained else element("span", text) for text, trained in example.pieces]
    end = element("span", " … cut here", class_="cut") if example.cut else Markup("")
    where = element("figcaption", example.where or "place not recorded")
    return element("figure", where, element("pre", join(pieces), end, dir="auto"), class_="example")


def _facts(title: str, facts: Sequence[Setting]) -> Markup:
    """A headed list of names and values; nothing where there are none."""
    if not facts:
        return Markup("")
    rows = [element("div", element("dt", fact.name), element("dd", fact.value)) for fact in facts]
    return element("div", element("h3", title), element("dl", *rows))


def details_section(report: Report) -> Markup:
    """What was asked, what ran, in which types, and on what; then whether the figures agree."""
    found = [
        _facts("Types, read back from live tensors", [f for f in report.dtypes if f.name not in CONFIGURED_TYPES]),
        _facts("Types, as configured", [f for f in report.dtypes if f.name in CONFIGURED_TYPES]),
        _facts("Environment", report.environment),
    ]
    read_back = element("div", *found, class_="stack") if any(found) else Markup("")
    lists = [_facts("Job", report.job), _facts("Execution", report.execution), read_back]
    known = element("section", element("h2", "What ran"), element("div", *lists, class_="columns"), class_="panel")
    ran = known if any(lists) else Markup("")
    checks = element("ul", *map(_check, report.checks), class_="checks")
    return join([ran, element("section", element("h2", "Do the figures agree?"), checks, class_="panel")])


def _check(check: Check) -> Markup:
    words = {True: "agrees", False: "differs", None: "unchecked"}[check.passed]
    badge = element("span", words, class_=f"badge {words}")
    return element("li", badge, element("div", element("strong", check.name), element("p", check.detail)))


def files_section(report: Report) -> Markup:
    """What the run left on disk."""
    rows = [
        element(
            "tr",
            element("th", element("code", entry.name), scope="row"),
            element("td", format_bytes(entry.num_bytes), class_="number"),
            element("td", entry.what, class_="covers"),
        )
        for entry in report.files
    ]
    head = _head(("File", None), ("Size", "number"), ("What it is", "covers"))
    table = element("table", head, element("tbody", *rows))
    return element("section", element("h2", "Files"), element("div", table, class_="scroll"), class_="panel")
