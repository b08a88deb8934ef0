"""The report as one self-contained page: what it says, in which order, and the charts with their legends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwise.report.charts import (
    Reference,
    Series,
    capacity_in_sight,
    line_chart,
    memory_chart,
    shown_ranks,
)
from shardwise.report.figures import card_row, details_section, example_section, files_section, table_section
from shardwise.report.markup import Markup, element, join
from shardwise.report.nouns import COMMON_PARTS, OUTSIDE_PART, MemoryReport, Report
from shardwise.report.page import legend_of, page
from shardwise.report.text import headline, model_size, outcome_sentence, write_power, write_seconds
from shardwise.units import format_bytes

WIDE, NARROW, SMALL = 940, 400, 320

NOISY_FROM = 20  # steps; of fewer, every value is read
MOST_DOTS = 40

#: How each kind of measurement is described under the memory chart.
KINDS = {
    "cuda_allocated": "Measured: the allocator's peak of allocated bytes (torch.cuda), by rank.",
    "cpu_allocation_events": "Measured: each process's highest sum of live bytes, from its allocation events.",
}

FOOT = "Error = (forecast − measured) ÷ measured: positive where the forecast was too high."


def report_html(report: Report) -> str:
    """The whole page."""
    return page(
        _heading(report),
        _gaps(report),
        card_row(report),
        _loss_section(report),
        _small_charts(report),
        _memory_section(report.memory),
        table_section(report),
        example_section(report),
        details_section(report),
        files_section(report),
        title=f"{headline(report)} – Shardwise report",
        foot=FOOT,
    )


def _heading(report: Report) -> Markup:
    facts = [report.method, report.strategy, report.hardware]
    return element(
        "header",
        element("p", f"Shardwise run report · {report.name}", class_="eyebrow"),
        element("h1", report.model or "Unknown model"),
        element("p", " · ".join([fact for fact in facts if fact] + [model_size(report)]), class_="facts"),
        element(
            "p",
            element("span", report.outcome.state, class_=f"badge {report.outcome.state}"),
            " ",
            outcome_sentence(report.outcome),
            class_="outcome",
        ),
    )


def _gaps(report: Report) -> Markup:
    if not report.gaps:
        return Markup("")
    lines = [element("li", element("code", gap.file), f" {gap.reason}") for gap in report.gaps]
    return element(
        "section",
        element("h2", "What this report lacks"),
        element("ul", *lines),
        class_="notice",
    )


def _series(report: Report, key: str, *, name: str) -> list[Series]:
    """A metric's line; of a noisy one the values stand back behind their running mean."""
    values, mean = report.curves[key], report.curves.get(f"{key}_smoothed")
    if mean is None or values.num_recorded < NOISY_FROM:
        return [Series(name=name, points=values.points, look="smooth")]
    return [
        Series(name=name, points=values.points, look="raw"),
        Series(name="running mean", points=mean.points, look="smooth"),
    ]


def _loss_section(report: Report) -> Markup:
    loss, held_out = report.curves["loss"], report.curves["eval_loss"]
    dots = held_out.num_recorded <= MOST_DOTS
    series = [
        *_series(report, "loss", name="loss"),
        Series(name="eval loss", points=held_out.points, look="second", dots=dots),
    ]
    charts = [
        line_chart(
            series,
            ident=f"loss-{look}",
            title="Loss over optimizer steps",
            width=width,
            height=300,
            write=lambda value: f"{value:.4g}",
        )
        for look, width in (("wide", WIDE), ("narrow", NARROW))
    ]
    legend = legend_of([(one.look, one.name) for one in series if one.points])
    thinned = f"Drawn from {loss.num_recorded:,} steps, with the lowest and highest value of every span kept."
    note = element("p", thinned, class_="note") if loss.num_recorded > len(loss.points) else Markup("")
    return element("section", _titled("Loss", legend), _both_widths(charts), note, class_="panel")


def _titled(title: str, legend: Markup) -> Markup:
    return element("div", element("h2", title), legend, class_="titled")


def _both_widths(charts: Sequence[Markup]) -> Markup:
    """One drawing for desks and one for phones, so that text keeps its size; the style sheet shows one."""
    wide, narrow = charts
    return join([element("div", wide, class_="wide"), element("div", narrow, class_="narrow")])


def _small_charts(report: Report) -> Markup:
    step = report.comparison("step time")
    forecast = Reference(name="forecast", value=step.forecast) if step and step.forecast is not None else None
    return element(
        "div",
        _small(report, "grad_norm", title="Gradient norm", write=lambda value: f"{value:.3g}"),
        _small(report, "learning_rate", title="Learning rate", write=write_power),
        _small(report, "step_seconds", title="Step time", write=write_seconds, reference=forecast),
        class_="trio",
    )


def _small(
    report: Report, key: str, *, title: str, write: Callable[[float], str], reference: Reference | None = None
) -> Markup:
    drawn = line_chart(
        _series(report, key, name=title.lower()),
        ident=key.replace("_", "-"),
        title=f"{title} over optimizer steps",
        width=SMALL,
        height=190,
        write=write,
        reference=reference,
    )
    legend = legend_of([("smooth", "measured"), ("reference", reference.name)]) if reference else Markup("")
    return element("section", _titled(title, legend), drawn, class_="panel")


def _memory_section(memory: MemoryReport) -> Markup:
    charts = [
        memory_chart(memory, ident=f"memory-{look}", width=width)
        for look, width in (("wide", WIDE), ("narrow", NARROW))
    ]
    entries = [(f"part {part}", part) for part in (*COMMON_PARTS, OUTSIDE_PART)]
    if any(rank.measured_peak_bytes and not rank.measured_parts for rank in memory.ranks):
        entries.append(("part peak", "peak, parts not measured"))
    legend = legend_of(entries) if memory.ranks else Markup("")
    notes = element("p", " ".join(_memory_notes(memory)), class_="note")
    return element("section", _titled("Memory by rank", legend), _both_widths(charts), notes, class_="panel")


def _memory_notes(memory: MemoryReport) -> list[str]:
    """What the bars cannot show."""
    notes: list[str] = []
    shown = len(shown_ranks(memory))
    if shown < len(memory.ranks):
        notes.append(f"{shown} of {len(memory.ranks):,} ranks: those with the highest peaks; report.json has all.")
    if memory.peak_low_bytes is not None and memory.peak_high_bytes is not None:
        interval = f"{format_bytes(memory.peak_low_bytes)} to {format_bytes(memory.peak_high_bytes)}"
        notes.append(f"Forecast peak {interval}, context included, reached in: {memory.peak_instant}.")
    if memory.capacity_bytes and not capacity_in_sight(memory):
        notes.append(f"The capacity of {format_bytes(memory.capacity_bytes)} lies beyond the chart.")
    notes.append(KINDS.get(memory.kind or "", "Parts were not measured."))
    notes.append("Other is activations, logits, communication and temporary; context lies outside the allocator.")
    return notes
