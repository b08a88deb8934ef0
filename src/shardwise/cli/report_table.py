"""A report for the terminal: forecast beside measurement, the loss, and what is missing."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from shardwise.api import Comparison, Report
from shardwise.units import format_bytes, format_count, format_seconds

FORMATS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "tokens_per_second": lambda value: f"{format_count(value)} tokens/s",
    "share": lambda value: f"{100 * value:.1f} %",
}


def print_report(report: Report, console: Console) -> None:
    """The whole report."""
    console.print(headline(report), style="bold")
    console.print(outcome_line(report))
    console.print()
    console.print(comparison_table(report.comparisons))
    for line in loss_lines(report):
        console.print(line)
    failed = [check for check in report.checks if check.passed is False]
    for check in failed:
        console.print(f"does not agree: {check.name}: {check.detail}")
    for gap in report.gaps:
        console.print(f"missing: {gap.file}: {gap.reason}")


def headline(report: Report) -> str:
    """What ran, in one line."""
    facts = [report.model, report.method, report.strategy, report.hardware and f"on {report.hardware}"]
    return f"{report.name}: " + ", ".join(fact for fact in facts if fact)


def outcome_line(report: Report) -> str:
    """How it ended."""
    outcome = report.outcome
    total = f" of {outcome.total_steps}" if outcome.total_steps is not None else ""
    by = f" by {outcome.signal}" if outcome.signal else ""
    cause = f": {outcome.failure}" if outcome.failure else ""
    return f"{outcome.state}{by} at step {outcome.step}{total}{cause}"


def comparison_table(comparisons: tuple[Comparison, ...]) -> Table:
    """One row per figure; `error` is the forecast's, positive where it was too high."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("forecast", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for row in comparisons:
        written = FORMATS[row.unit]
        error = row.error_percent
        table.add_row(
            row.what,
            "-" if row.forecast is None else written(row.forecast),
            "-" if row.measured is None else written(row.measured),
            "" if error is None else f"{error:+.1f} %",
            row.note,
        )
    return table


def loss_lines(report: Report) -> list[str]:
    """First and last loss, and the last evaluation."""
    loss, evaluation = report.curves.get("loss"), report.curves.get("eval_loss")
    lines: list[str] = []
    if loss is not None and loss.first is not None and loss.last is not None:
        lines += ["", f"loss {loss.first:.4f} at the first step, {loss.last:.4f} at the last of {loss.num_recorded}"]
    if evaluation is not None and evaluation.last is not None:
        lines.append(f"evaluation loss {evaluation.last:.4f}")
    return lines
