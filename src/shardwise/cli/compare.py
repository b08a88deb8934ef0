"""`shardwise compare`: which layout is the fastest for this job on this machine?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardwise.cli.trials import LAYOUTS_HELP, AsJson, Job, Sets, names

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shardwise.api import Versus


def compare(
    job: Job,
    layouts: Annotated[str, typer.Option(metavar="LIST", help=LAYOUTS_HELP)],
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each run; left out: the job's.")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Run a job under several layouts and put utilisation, time, memory and loss side by side, the fastest first.

    Exits 0: compared, 1: a run failed, the others stand, 2: bad input, or a layout that was named cannot run here, the
    others stand, 130 or 143: stopped by a signal; run again, it goes on.
    """
    from shardwise import api
    from shardwise.cli.console import make_console, print_json
    from shardwise.cli.trials import TrialProgress

    console = make_console()
    with TrialProgress(make_console(sys.stderr) if as_json else console) as progress:
        found = api.compare(job, layouts=names(layouts), overrides=sets or [], steps=steps, on_update=progress.show)
    if as_json:
        print_json(found.to_json())
    else:
        print_versus(found, console)
    if found.failed or found.unable:
        raise typer.Exit(1 if found.failed else 2)


def print_versus(found: Versus, console: Console) -> None:
    """The whole answer."""
    from pathlib import Path

    console.print()
    console.print(versus_table(found))
    for one in found.contenders:
        console.print(f"{one.layout}: {one.by_rank}", style="dim")
    for one in found.failed:
        console.print(f"failed: {one.layout}: {one.reason}")
    for layout, reason in found.unable:
        console.print(f"cannot run here: {layout}: {reason}")
    console.print()
    console.print(found.sentence, style="bold")
    for note in found.notes:
        console.print(note)
    first = (*found.contenders, *found.failed)[0]
    console.print(f"page: {Path(first.run).parent / 'compare.html'}", soft_wrap=True)


COLUMNS = {
    "GPU": "GPU utilisation",
    "step": "step time",
    "total": "total time",
    "throughput": "throughput",
    "peak memory": "peak memory",
}


def versus_table(found: Versus) -> Table:
    """Two lines per layout: measured, and forecast below it; one where it failed."""
    from shardwise.cli.console import figures_table

    table = figures_table("layout", *COLUMNS, "final loss")
    for one in found.contenders:
        table.add_row(one.name, *(one.written(what, "measured") for what in COLUMNS.values()), one.final_loss_written)
        table.add_row("  forecast", *(one.written(what, "forecast") for what in COLUMNS.values()), style="dim")
    for one in found.failed:
        table.add_row(one.layout, "failed")
    return table
