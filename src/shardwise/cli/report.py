"""`shardwise report`: was the plan right?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from shardwise import api
from shardwise.cli.console import AsJson, RunDir, figures_table, make_console, print_json
from shardwise.errors import RunDirectoryError


def report(
    run_dir: RunDir,
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the page lies, and nothing else.")] = False,
) -> None:
    """Put forecast and measurement side by side; writes report.json and report.html into the run
    directory."""
    made = api.report(run_dir)
    lacks = next((gap.reason for gap in made.gaps if gap.file == "report.html"), None)
    if as_json:
        print_json(made.to_json())
    elif html and lacks is not None:
        raise RunDirectoryError(lacks)
    elif html:
        typer.echo(str(run_dir / "report.html"))
    else:
        print_report(made, console := make_console())
        if lacks is None:
            console.print(f"\npage: {run_dir / 'report.html'}", soft_wrap=True)


def print_report(report: api.Report, console: Console) -> None:
    """The whole report; an error is positive where the forecast was too high."""
    from shardwise.cli.data import print_data

    console.print(f"{report.name}: {report.headline}", style="bold")
    console.print(report.outcome.sentence)
    for setting in report.job:
        if setting.name == "learning rate schedule":  # it has changed on the way
            console.print(f"{setting.name}: {setting.value}", soft_wrap=True)
    table = figures_table("", "forecast", "measured", "error")
    table.add_column("", style="dim")
    for row in report.comparisons:
        table.add_row(row.what, row.written("forecast"), row.written("measured"), row.error_written, row.note)
    console.print()
    console.print(table)
    for line in (*([""] if report.notes else []), *report.notes):
        console.print(line)
    loss, evaluation = report.curves["loss"], report.curves["eval_loss"]
    if loss.first is not None and loss.last is not None:
        console.print(f"\nloss {loss.first:.4f} at the first step, {loss.last:.4f} at the last of {loss.num_recorded}")
    if evaluation.last is not None:
        console.print(f"evaluation loss {evaluation.last:.4f}")
    for check in report.checks:
        if check.passed is False:
            console.print(f"does not agree: {check.name}: {check.detail}")
    if report.rows is not None:
        console.print()
        print_data(report.rows, console)
    for gap in report.gaps:
        console.print(f"missing: {gap.file}: {gap.reason}")
