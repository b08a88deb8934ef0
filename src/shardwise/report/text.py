"""The report as rows of words, for the terminal and the page: one way to write a figure and its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.report.curves import sparkline
from shardwise.report.markup import printable
from shardwise.report.nouns import Comparison, Outcome, Report, Unit
from shardwise.units import format_bytes, format_count, format_seconds

NOT_FORECAST = "not forecast"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table, all in words; `indent` marks a part of the figure above it."""

    what: str
    forecast: str
    measured: str
    error: str
    note: str = ""
    indent: bool = False


def one_line(text: str) -> str:
    """Text from anywhere as one line without control characters: a name must not steer a terminal."""
    return printable(" ".join(text.split()))


def write_value(value: float, unit: Unit) -> str:
    """A figure with its unit, for people."""
    writers: dict[Unit, Callable[[float], str]] = {
        "bytes": format_bytes,
        "seconds": write_seconds,
        "tokens_per_second": lambda rate: f"{_write_rate(rate)} tokens/s",
        "share": _write_share,
    }
    return writers[unit](value)


def write_seconds(seconds: float) -> str:
    """`format_seconds`, with milliseconds below a tenth of a second."""
    return f"{1000 * seconds:.3g} ms" if 0 < seconds < 0.1 else format_seconds(seconds)


def write_power(value: float) -> str:
    """`1.5e-4`: a learning rate."""
    mantissa, exponent = f"{value:.3e}".split("e")
    return "0" if value == 0 else f"{float(mantissa):g}e{int(exponent)}"


def _write_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _write_share(share: float) -> str:
    """A small share keeps two figures: a tiny model's MFU is not 0."""
    percent = 100 * share
    return f"{percent:.1f} %" if percent == 0 or abs(percent) >= 1 else f"{percent:.2g} %"


def write_error(percent: float | None) -> str:
    """`+2.1 %`: how far the forecast lies above the measurement; a dash where there is no error to state."""
    if percent is None:
        return "–"
    if percent == 0:
        return "exact"
    return f"{percent:+,.1f} %" if abs(percent) < 1000 else f"{percent:+,.0f} %"


def table_rows(report: Report) -> list[Row]:
    """Forecast, measurement and error, part by part; a figure that is missing says so."""
    return [_row(comparison) for comparison in report.comparisons]


def _row(comparison: Comparison) -> Row:
    unit = comparison.unit
    return Row(
        what=comparison.what,
        forecast=NOT_FORECAST if comparison.forecast is None else write_value(comparison.forecast, unit),
        measured=NOT_MEASURED if comparison.measured is None else write_value(comparison.measured, unit),
        error=write_error(comparison.error_percent),
        note=comparison.note,
        indent=unit == "bytes" and comparison.what != "peak memory",
    )


def headline(report: Report) -> str:
    """What ran, on one line: `llama-3.1-8b, lora, fsdp on 4x RTX-6000-Ada`."""
    ran = f"{report.strategy or 'unknown strategy'} on {report.hardware or 'unknown hardware'}"
    return one_line(", ".join([report.model or "unknown model", *([report.method] if report.method else []), ran]))


def outcome_sentence(outcome: Outcome) -> str:
    """How it ended, at which step, and why."""
    steps = f"step {outcome.step:,}" + (f" of {outcome.total_steps:,}" if outcome.total_steps else "")
    match outcome.state:
        case "finished":
            sentence = f"Finished at {steps}."
        case "stopped":
            sentence = f"Stopped at {steps}" + (f" by signal {outcome.signal}" if outcome.signal else "") + "."
            sentence += " Running the job again resumes it."
        case "failed":
            sentence = f"Failed after {steps}: {outcome.failure or 'no cause was recorded'}"
        case "unfinished":
            phase = f", last phase {outcome.phase}" if outcome.phase else ""
            sentence = f"Still running, or ended without a word: {steps}{phase}."
    return one_line(sentence)


def model_size(report: Report) -> str:
    """`8.03B parameters, 42M trained (0.52 %)`."""
    total, trained = report.num_parameters, report.num_trainable_parameters
    if total is None:
        return "size not known"
    size = f"{format_count(total)} parameters"
    if trained is None or not total:
        return size
    return f"{size}, {format_count(trained)} trained ({100 * trained / total:.3g} %)"


def loss_line(report: Report, *, width: int = 40) -> str:
    """The loss in block characters, with its first and last value; empty where no step was recorded."""
    curve = report.curves["loss"]
    if curve.first is None or curve.last is None:
        return ""
    return f"{curve.first:.4g} {sparkline([value for _, value in curve.points], width=width)} {curve.last:.4g}"


def summary_lines(report: Report) -> list[str]:
    """The report without its table, one fact per line, plain text."""
    loss, failed = loss_line(report), [check for check in report.checks if check.passed is False]
    lines = [headline(report), outcome_sentence(report.outcome), model_size(report)]
    lines += [f"loss {loss}"] if loss else []
    lines += [f"does not agree: {check.name}: {check.detail}" for check in failed]
    lines += [f"{gap.file}: {gap.reason}" for gap in report.gaps]
    return [one_line(line) for line in lines]
