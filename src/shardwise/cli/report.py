"""`shardwise report`: was the plan right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.trials import AsJson


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The output_dir of a training run.")],
    as_json: AsJson = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the page lies, and nothing else.")] = False,
) -> None:
    """Put forecast and measurement side by side; writes report.json and report.html into the run directory."""
    from shardwise import api
    from shardwise.cli.console import make_console, print_json

    made = api.report(run_dir)
    if as_json:
        print_json(made.to_json())
    elif html:
        typer.echo(str(run_dir / "report.html"))
    else:
        from shardwise.cli.report_table import print_report

        console = make_console()
        print_report(made, console)
        console.print(f"\npage: {run_dir / 'report.html'}", soft_wrap=True)
