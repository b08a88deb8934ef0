"""`shardwise verify`: is it the same training under every layout?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwise.cli.trials import LAYOUTS_HELP, AsJson, Job, Sets, names

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shardwise.api import Agreement, Parity


def verify(
    job: Job,
    layouts: Annotated[str | None, typer.Option(metavar="LIST", help=LAYOUTS_HELP)] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every way, schedule and product; left out: one layout of each kind.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Optimizer steps of each run, or the job's max_steps where less.")] = 20,
    tolerance: Annotated[
        float, typer.Option(help="Of loss, gradient norm and weights, relative to one process.")
    ] = 1e-5,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Train a job as one process and under each kind of layout that this machine can hold, and compare step by step.

    Exits 0: the same training, 1: a layout differs, and the first difference is named, 2: bad input, such as a layout
    in LIST that cannot run here, 130 or 143: stopped by a signal; run again, it starts anew.
    """
    from shardwise import api
    from shardwise.cli.console import make_console, print_json
    from shardwise.cli.trials import TrialProgress

    console = make_console()
    with TrialProgress(make_console(sys.stderr) if as_json else console) as progress:
        parity = api.verify(
            job,
            layouts=_asked(layouts, every=every),
            overrides=sets or [],
            steps=steps,
            tolerance=tolerance,
            on_update=progress.show,
        )
    if as_json:
        print_json(parity.to_json())
    else:
        print_parity(parity, console)
        if layouts is None and not every:
            console.print("one layout of each kind was tried; --all tries every way, schedule and product", style="dim")
    if not parity.agrees:
        raise typer.Exit(1)
    if layouts is not None and "all" not in names(layouts) and parity.unable:
        raise typer.Exit(2)


def _asked(layouts: str | None, *, every: bool) -> list[str] | None:
    """The names to try; None where one of each kind is."""
    if layouts is not None and every:
        raise typer.BadParameter("--all and --layouts exclude each other; keep one")
    return ["all"] if every else None if layouts is None else names(layouts)


def print_parity(parity: Parity, console: Console) -> None:
    """The whole answer."""
    for change in parity.changes:
        console.print(change)
    console.print()
    console.print(parity_table(parity))
    for row in parity.layouts:
        excused = _excused(row)
        if excused is not None:  # a difference above the tolerance that is small against the sum of SGD's steps
            console.print(
                f"{row.layout}: {excused['name']} differs by {excused['relative']:.1e} relative to its norm, which is "
                "less than a tolerance of all that sgd's steps changed together"
            )
    for layout, reason in parity.unable:
        console.print(f"cannot run here: {layout}: {reason}")
    console.print()
    console.print(parity.sentence, style="bold")
    for row in parity.layouts:
        if row.first is not None and row.first != parity.first:
            console.print(row.first.sentence)
    console.print(f"run directories: {parity.reference} and beside it", soft_wrap=True)


def parity_table(parity: Parity) -> Table:
    """One row per layout: the largest relative differences, and the first that is too large."""
    from shardwise.cli.console import figures_table

    table = figures_table("layout", "processes", "steps", "loss", "grad norm", "weights")
    table.add_column("first difference")
    table.add_row("single-1", "1", str(parity.num_steps), "", "", "", "the reference")
    for row in parity.layouts:
        table.add_row(*_cells(row))
    return table


def _excused(row: Agreement) -> dict[str, Any] | None:
    return None if row.weights is None else row.weights.get("excused")


def _cells(row: Agreement) -> list[str]:
    weights = (
        None if row.weights is None else float(row.weights["relative"] or (_excused(row) or {}).get("relative", 0))
    )
    figures = [
        "-" if value is None else "exact" if value == 0 else f"{value:.1e}"
        for value in (row.loss, row.grad_norm, weights)
    ]
    first = "none" if row.plain is None else "none: adamw's rounding"
    if row.first is not None:
        at = "" if row.first.step is None else f" at step {row.first.step}"
        first = "failed" if row.first.figure == "run" else f"{row.first.figure}{at}"
    return [row.layout, str(row.processes), str(row.num_steps), *figures, first]
