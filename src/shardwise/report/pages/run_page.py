"""report.html: what ran, how it ended, and the forecast beside the measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardwise.report.compare import common_parts
from shardwise.report.nouns import (
    COMMON_PARTS,
    CONFIGURED_TYPES,
    OUTSIDE_PART,
    Comparison,
    Curve,
    DataCounts,
    MemoryReport,
    RankReport,
    Report,
    Setting,
)
from shardwise.report.pages.charts import Chart, Stack, Table, curve_data, memory_chart
from shardwise.report.pages.render import render
from shardwise.report.written import MISSING, NOT_FORECAST, NOT_MEASURED, write_power, write_seconds
from shardwise.units import format_bytes

NOISY_FROM = 20  # recorded steps; with fewer, the values are drawn without their running mean
MAX_RANKS = 8
MAX_TABLE_ROWS = 24
#: A capacity of more than this many peaks is named and not drawn: it would leave no room for the bars.
FARTHEST_CAPACITY = 4

#: Comparisons that have a card, after the loss.
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

#: How each kind of measurement is described under the memory chart.
KINDS = {
    "cuda_allocated": "Measured: peak of allocated bytes of each rank (torch.cuda).",
    "cpu_allocation_events": "Measured: peak of live bytes of each process, from its allocation events.",
}

#: Curves of the table of values: (key, column, how a value is written).
TABLE_CURVES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("loss", "loss", "{:.4g}".format),
    ("eval_loss", "eval loss", "{:.4g}".format),
    ("grad_norm", "gradient norm", "{:.3g}".format),
    ("learning_rate", "learning rate", write_power),
    ("step_seconds", "step time", write_seconds),
)


def report_html(report: Report) -> str:
    """The whole page."""
    return render(
        "report.html",
        curves=curves_of(report),
        report=report,
        cards=_cards(report),
        memory=memory_by_rank(report.memory),
        memory_notes=_memory_notes(report.memory),
        values=_values(report),
        tone=_tone,
        forecast_parts=_forecast_parts(report),
        data=[(split.split, _counts(split)) for split in report.data],
        facts=_facts(report),
        files=[(entry.name, format_bytes(entry.num_bytes), entry.what) for entry in report.files],
    )


def curves_of(report: Report) -> list[dict[str, Any]]:
    """The four charts over optimizer steps."""
    step = report.comparison("step time")
    level = ("forecast", step.forecast) if step and step.forecast is not None else None
    loss = [*_lines(report, "loss", "loss"), ("eval loss", "second", report.curves["eval_loss"])]
    return [
        curve_data(loss, title="Loss", unit="plain"),
        curve_data(_lines(report, "grad_norm", "gradient norm"), title="Gradient norm", unit="plain"),
        curve_data(_lines(report, "learning_rate", "learning rate"), title="Learning rate", unit="power"),
        curve_data(_lines(report, "step_seconds", "step time"), title="Step time", unit="seconds", level=level),
    ]


def _lines(report: Report, key: str, name: str) -> list[tuple[str, str, Curve]]:
    """A metric; where it is noisy, in a faint colour below its running mean."""
    values, mean = report.curves[key], report.curves.get(f"{key}_smoothed")
    if mean is None or values.num_recorded < NOISY_FROM:
        return [(name, "main", values)]
    return [(name, "raw", values), ("running mean", "main", mean)]


def _values(report: Report) -> Table | None:
    """The curves as a table of evenly spread steps, for readers without scripts."""
    kept = [(name, dict(report.curves[key].points), write) for key, name, write in TABLE_CURVES]
    steps = sorted({step for _, points, _ in kept for step in points})
    if not steps:
        return None
    last = len(steps) - 1
    shown = sorted({steps[round(last * index / (MAX_TABLE_ROWS - 1))] for index in range(MAX_TABLE_ROWS)})
    rows = [
        (f"{step:,}", *(write(points[step]) if step in points else MISSING for _, points, write in kept))
        for step in shown
    ]
    return Table(columns=("step", *(name for name, _, _ in kept)), rows=tuple(rows))


def _cards(report: Report) -> list[tuple[str, str, str]]:
    """(name, value, what stands below it)."""
    loss, held_out = report.curves["loss"], report.curves["eval_loss"]
    cards = [("loss", NOT_MEASURED, "no step recorded")]
    if loss.first is not None and loss.last is not None:
        under = f"from {loss.first:.4g}" + ("" if held_out.last is None else f", eval {held_out.last:.4g}")
        cards = [("loss", f"{loss.last:.4g}", under)]
    cards += [_card(row) for name in CARDS if (row := report.comparison(name)) is not None]
    if report.tokens is None:
        return [*cards, ("tokens seen", NOT_MEASURED, "not counted in any step")]
    trained = "" if report.trained_tokens is None else f"{report.trained_tokens:,} counted in the loss"
    return [*cards, ("tokens seen", f"{report.tokens:,}", trained)]


def _card(row: Comparison) -> tuple[str, str, str]:
    value = row.written("measured", missing=NOT_MEASURED)
    if row.forecast is None:
        return row.what, value, NOT_FORECAST
    error = f" ({row.error_written})" if row.error_percent is not None else ""
    return row.what, value, f"forecast {row.written('forecast')}{error}".replace(" %", "\u00a0%")


def _tone(error_percent: float | None) -> str:
    """Within 5 % (promised for memory) is near, beyond 15 % (promised for time) is far."""
    if error_percent is None:
        return "none"
    return "near" if abs(error_percent) <= 5 else "fair" if abs(error_percent) <= 15 else "far"


def shown_ranks(memory: MemoryReport) -> list[RankReport]:
    """The ranks with the highest peaks, by number."""

    def height(rank: RankReport) -> tuple[bool, int, int]:
        worst = rank.rank == memory.worst_rank
        return (worst, rank.measured_peak_bytes or rank.forecast_peak_bytes or 0, -rank.rank)

    return sorted(sorted(memory.ranks, key=height, reverse=True)[:MAX_RANKS], key=lambda rank: rank.rank)


def memory_by_rank(memory: MemoryReport) -> Chart | None:
    """Two bars for each rank, forecast and measured; None where nothing is known."""
    stacks = [stack for rank in shown_ranks(memory) for stack in _stacks(rank)]
    if not any(stack.total for stack in stacks):
        return None
    capacity = memory.capacity_bytes if capacity_in_sight(memory) else None
    return memory_chart(stacks, title="Memory of each rank, forecast and measured", capacity=capacity)


def capacity_in_sight(memory: MemoryReport) -> bool:
    """Whether the capacity is known and near enough to the peaks to be drawn."""
    peaks = [rank.measured_peak_bytes or rank.forecast_peak_bytes or 0 for rank in memory.ranks]
    return bool(memory.capacity_bytes) and (memory.capacity_bytes or 0) <= FARTHEST_CAPACITY * max(peaks, default=0)


def _stacks(rank: RankReport) -> list[Stack]:
    """Forecast and measured parts of a rank; a measured peak without parts is one part."""
    sides: list[tuple[str, dict[str, int]]] = []
    if rank.forecast_parts:
        outside = rank.forecast_parts.get(OUTSIDE_PART, 0)
        sides.append(("forecast", {**common_parts(rank.forecast_parts), OUTSIDE_PART: outside}))
    if rank.measured_parts and len(rank.measured_parts) == len(COMMON_PARTS):
        sides.append(("measured", rank.measured_parts))
    elif rank.measured_peak_bytes:
        sides.append(("measured", {"peak": rank.measured_peak_bytes}))
    return [
        Stack(label=f"rank {rank.rank}", under=side, parts=parts, new=index == 0)
        for index, (side, parts) in enumerate(sides)
    ]


def _memory_notes(memory: MemoryReport) -> str:
    """What the bars do not show."""
    notes: list[str] = []
    shown = len(shown_ranks(memory))
    if shown < len(memory.ranks):
        notes.append(f"{shown} of {len(memory.ranks):,} ranks: those with the highest peaks; report.json has all.")
    if memory.peak_low_bytes is not None and memory.peak_high_bytes is not None:
        interval = f"{format_bytes(memory.peak_low_bytes)} to {format_bytes(memory.peak_high_bytes)}"
        notes.append(f"Forecast peak: {interval}, context included, reached in: {memory.peak_instant}.")
    if memory.capacity_bytes and not capacity_in_sight(memory):
        notes.append(f"The capacity of {format_bytes(memory.capacity_bytes)} lies beyond the chart.")
    notes.append(KINDS.get(memory.kind or "", "Parts were not measured."))
    notes.append("Other: activations, gradients, logits, communication and temporary. Context: outside the allocator.")
    return " ".join(notes)


def _forecast_parts(report: Report) -> str:
    """All parts of the worst rank's forecast."""
    worst = report.memory.worst
    if worst is None or not worst.forecast_parts:
        return ""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in worst.forecast_parts.items())
    return f"Forecast of rank {worst.rank} in full: {parts}."


def _counts(data: DataCounts) -> list[Setting]:
    facts = [
        Setting(name=name, value=f"{data.counts[key]:,}") for key, name in COUNT_NAMES.items() if key in data.counts
    ]
    tokens, trained = data.counts.get("num_tokens"), data.counts.get("num_trained_tokens")
    if tokens and trained is not None:
        facts.append(Setting(name="share trained", value=f"{100 * trained / tokens:.1f} %"))
    return [*facts, Setting(name="sources", value=", ".join(data.sources) or "not recorded")]


def _facts(report: Report) -> list[tuple[str, list[Setting]]]:
    """Settings by heading; empty lists are left out."""
    found = {
        "Job": list(report.job),
        "Execution": list(report.execution),
        "Types, read from live tensors": [fact for fact in report.dtypes if fact.name not in CONFIGURED_TYPES],
        "Types, as configured": [fact for fact in report.dtypes if fact.name in CONFIGURED_TYPES],
        "Environment": list(report.environment),
    }
    return [(title, facts) for title, facts in found.items() if facts]
