"""report.html: what ran, how it ended, and the forecast beside the measurement."""

from collections.abc import Callable
from typing import Any

from shardwise.report.compare import common_parts
from shardwise.report.contents import (
    COMMON_PARTS,
    CONFIGURED_TYPES,
    OUTSIDE_PART,
    Curve,
    MemoryReport,
    RankReport,
    Report,
)
from shardwise.report.pages.charts import Chart, MemoryBar, Table, curve_data, memory_chart
from shardwise.report.pages.plan_page import rows_of
from shardwise.report.pages.render import render
from shardwise.report.written import MISSING, NOMINAL_TIMES, write_power, write_seconds

NOISY_FROM = 20  # recorded steps; with fewer, the values are drawn without their running mean
MAX_RANKS = 8
MAX_TABLE_ROWS = 24
#: A capacity of more than this many peaks is named, not drawn: it would leave no room for bars.
FARTHEST_CAPACITY = 4

CARDS = ("peak memory", "step time", "throughput", "MFU", "GPU utilisation", "total time")

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
    return render("report.html", curves=curves_of(report), **report_context(report))


def report_context(report: Report) -> dict[str, Any]:
    """What `report_body.html` reads; the charts over steps are `curves_of`."""
    return {
        "report": report,
        "cards": [row for name in CARDS if (row := report.comparison(name)) is not None],
        "memory": memory_by_rank(report.memory),
        "num_ranks_shown": min(MAX_RANKS, len(report.memory.ranks)),
        "capacity_drawn": _near_capacity(report.memory) is not None,
        "values": _values(report),
        **rows_of(report.rows),
        "examples": [(one.where, one.pieces, one.cut) for one in report.examples],
        "more_curves": [chart["title"] for chart in _preference_curves(report)],
        "configured": CONFIGURED_TYPES,
        "nominal": NOMINAL_TIMES in report.notes,
        "left": _seconds_left(report),
    }


def _seconds_left(report: Report) -> float | None:
    """Of a run that goes on, at the step time that was measured."""
    outcome, step = report.outcome, report.comparison("step time")
    if outcome.state not in ("running", "unfinished") or not outcome.total_steps or not step or step.measured is None:
        return None
    return step.measured * (outcome.total_steps - outcome.step)


def curves_of(report: Report) -> list[dict[str, Any]]:
    """The four charts over optimizer steps, and those of preferences."""
    step = report.comparison("step time")
    level = ("forecast", step.forecast) if step and step.forecast is not None else None
    loss = [*_lines(report, "loss", "loss"), ("eval loss", "second", report.curves["eval_loss"])]
    return [
        curve_data(loss, title="Loss", unit="plain"),
        curve_data(_lines(report, "grad_norm", "gradient norm"), title="Gradient norm", unit="plain"),
        curve_data(_lines(report, "learning_rate", "learning rate"), title="Learning rate", unit="power"),
        curve_data(_lines(report, "step_seconds", "step time"), title="Step time", unit="seconds", level=level),
        *_preference_curves(report),
    ]


#: Charts of preferences: (title, [(name, class of the style sheet, curve)]).
_PREFERENCES: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    ("Rewards", (("chosen", "main", "rewards/chosen"), ("rejected", "second", "rewards/rejected"))),
    ("Margin of rewards", (("margin", "main", "rewards/margins"), ("evaluation", "second", "eval_rewards/margins"))),
    (
        "Share of pairs with the higher reward chosen",
        (("share", "main", "rewards/accuracies"), ("evaluation", "second", "eval_rewards/accuracies")),
    ),
    ("Log-probabilities", (("chosen", "main", "logps/chosen"), ("rejected", "second", "logps/rejected"))),
    ("KL", (("KL", "main", "kl"), ("evaluation", "second", "eval_kl"))),
)


def _preference_curves(report: Report) -> list[dict[str, Any]]:
    charts = (
        (title, [(name, look, report.curves[key]) for name, look, key in lines if key in report.curves])
        for title, lines in _PREFERENCES
    )
    return [curve_data(lines, title=title, unit="plain") for title, lines in charts if lines]


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
    apart = (len(steps) - 1) / (MAX_TABLE_ROWS - 1)
    shown = sorted({steps[round(apart * index)] for index in range(MAX_TABLE_ROWS)})
    columns = [[write(points[step]) if step in points else MISSING for step in shown] for _, points, write in kept]
    rows = zip((f"{step:,}" for step in shown), *columns, strict=True)
    return Table(columns=("step", *(name for name, _, _ in kept)), rows=tuple(rows))


def _peak(rank: RankReport) -> int:
    return rank.measured_peak_bytes or rank.forecast_peak_bytes or 0


def _near_capacity(memory: MemoryReport) -> int | None:
    """The capacity, where it is known and near enough to the peaks to be drawn."""
    farthest = FARTHEST_CAPACITY * max(map(_peak, memory.ranks), default=0)
    return memory.capacity_bytes if 0 < (memory.capacity_bytes or 0) <= farthest else None


def memory_by_rank(memory: MemoryReport) -> Chart | None:
    """Two bars, forecast and measured, for ranks of the highest peaks; None: nothing is known."""
    by_peak = sorted(memory.ranks, key=lambda one: (one.rank != memory.worst_rank, -_peak(one), one.rank))
    shown = sorted(by_peak[:MAX_RANKS], key=lambda rank: rank.rank)
    stacks = [stack for rank in shown for stack in _stacks(rank)]
    if not any(stack.total for stack in stacks):
        return None
    title = "Memory of each rank, forecast and measured"
    return memory_chart(stacks, title=title, capacity=_near_capacity(memory))


def _stacks(rank: RankReport) -> list[MemoryBar]:
    """Forecast and measured parts of a rank; a measured peak without parts is one part."""
    sides: list[tuple[str, dict[str, int]]] = []
    if rank.forecast_parts:
        outside = rank.forecast_parts.get(OUTSIDE_PART, 0)
        sides.append(("forecast", {**common_parts(rank.forecast_parts), OUTSIDE_PART: outside}))
    if rank.measured_parts and len(rank.measured_parts) == len(COMMON_PARTS):
        sides.append(("measured", rank.measured_parts))
    elif rank.measured_peak_bytes:
        sides.append(("measured", {"peak": rank.measured_peak_bytes}))
    name = f"rank {rank.rank}"
    return [MemoryBar(label=name, under=side, parts=parts, new=side is sides[0][0]) for side, parts in sides]
