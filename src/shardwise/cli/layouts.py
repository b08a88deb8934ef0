"""`shardwise compare` and `shardwise verify`: one job under several layouts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from shardwise import api
from shardwise.cli.console import AsJson, Job, Sets, figures_table, make_console, print_answer

if TYPE_CHECKING:
    from shardwise.cli.progress import ProgressDisplay

LAYOUTS_HELP = (
    "Such as single,ddp,fsdp,gpipe,fsdp+tp. fsdp-4: fsdp on 4 processes; job: the job's own layout; all: every layout."
)

#: Columns of `compare` -> the figures in them.
COLUMNS = {
    "GPU": "GPU utilisation",
    "step": "step time",
    "total": "total time",
    "throughput": "throughput",
    "peak memory": "peak memory",
}


def compare(
    job: Job,
    layouts: Annotated[str, typer.Option(metavar="LIST", help=LAYOUTS_HELP)],
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each run; left out: the job's.")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Run a job under several layouts and put them side by side, the fastest first.

    Exits 0: compared, 1: a run failed, the others stand, 2: bad input, or a layout that was named
    cannot run here, the others stand, 130 or 143: stopped by a signal; run again, it goes on.
    """
    with LayoutProgress(as_json=as_json) as progress:
        found = api.compare(job, layouts=_names(layouts), overrides=sets or [], steps=steps, on_update=progress.show)
    print_answer(found, _print_versus, as_json=as_json)
    if found.failed or found.unable:
        raise typer.Exit(1 if found.failed else 2)


def _print_versus(found: api.Versus, console: Console) -> None:
    table = figures_table("layout", *COLUMNS, "final loss")
    for one in found.contenders:
        figures = [one.figure(what) for what in COLUMNS.values()]
        table.add_row(one.name, *(figure.written("measured") for figure in figures), one.final_loss_written)
        table.add_row("  forecast", *(figure.written("forecast") for figure in figures), style="dim")
    for one in found.failed:
        table.add_row(one.layout, "failed")
    console.print()
    console.print(table)
    for one in found.contenders:
        ranks = "; ".join(f"rank {rank.rank}: {rank.written}" for rank in one.ranks)
        console.print(f"{one.layout}: {ranks}", style="dim")
    for one in found.failed:
        console.print(f"failed: {one.layout}: {one.reason}")
    _print_end(found, console)
    for note in found.notes:
        console.print(note)
    first = (*found.contenders, *found.failed)[0]
    console.print(f"page: {Path(first.run).parent / 'compare.html'}", soft_wrap=True)


def _print_end(found: api.Versus | api.Parity, console: Console) -> None:
    for layout, reason in found.unable:
        console.print(f"cannot run here: {layout}: {reason}")
    console.print()
    console.print(found.sentence, style="bold")


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
    """Train a job on one process and under each kind of layout, and compare step by step.

    Exits 0: the same training, 1: a layout differs, and the first difference is named, 2: bad
    input, such as a layout in LIST that cannot run here, 130 or 143: stopped by a signal; run
    again, it starts anew.
    """
    if layouts is not None and every:
        raise typer.BadParameter("--all and --layouts exclude each other; keep one")
    asked = ["all"] if every else None if layouts is None else _names(layouts)
    with LayoutProgress(as_json=as_json) as progress:
        parity = api.verify(
            job, layouts=asked, overrides=sets or [], steps=steps, tolerance=tolerance, on_update=progress.show
        )
    print_answer(parity, _print_parity, as_json=as_json)
    if asked is None and not as_json:
        more = "one layout of each kind was tried; --all tries every way, schedule and product"
        make_console().print(more, style="dim")
    if not parity.agrees:
        raise typer.Exit(1)
    if asked is not None and "all" not in asked and parity.unable:
        raise typer.Exit(2)


def _print_parity(parity: api.Parity, console: Console) -> None:
    for change in parity.changes:
        console.print(change)
    table = figures_table("layout", "processes", "steps", "loss", "grad norm", "weights")
    table.add_column("first difference")
    table.add_row("single-1", "1", str(parity.num_steps), "", "", "", "the reference")
    for row in parity.layouts:
        table.add_row(*_cells(row))
    console.print()
    console.print(table)
    for row in parity.layouts:
        excused = _excused(row)
        if excused is not None:  # a difference above the tolerance that is small against the sum of SGD's steps
            console.print(
                f"{row.layout}: {excused['name']} differs by {excused['relative']:.1e} relative to its norm, which is "
                "less than a tolerance of all that sgd's steps changed together"
            )
    _print_end(parity, console)
    for row in parity.layouts:
        if row.first is not None and row.first != parity.first:
            console.print(row.first.sentence)
    console.print(f"run directories: {parity.reference} and beside it", soft_wrap=True)


def _excused(row: api.Agreement) -> dict[str, Any] | None:
    return None if row.weights is None else row.weights.get("excused")


def _cells(row: api.Agreement) -> Sequence[str]:
    weights = None
    if row.weights is not None:
        weights = float(row.weights["relative"] or (_excused(row) or {}).get("relative", 0))
    figures = (row.loss, row.grad_norm, weights)
    written = ["-" if value is None else "exact" if value == 0 else f"{value:.1e}" for value in figures]
    first = "none" if row.plain is None else "none: adamw's rounding"
    if row.first is not None:
        at = "" if row.first.step is None else f" at step {row.first.step}"
        first = "failed" if row.first.figure == "run" else f"{row.first.figure}{at}"
    return [row.layout, str(row.processes), str(row.num_steps), *written, first]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class LayoutProgress:
    """One line for each layout; on a terminal, below it the live view of its training."""

    def __init__(self, *, as_json: bool) -> None:
        self._console = make_console(sys.stderr if as_json else None)
        self._progress: ProgressDisplay | None = None

    def __enter__(self) -> LayoutProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None

    def show(self, update: api.Update | api.Trying) -> None:
        """Shows one update."""
        from shardwise.cli.progress import ProgressDisplay

        if isinstance(update, api.Trying):
            self.__exit__()
            again = f", once more with {update.again}" if update.again else ""
            self._console.print(f"{update.layout} ({update.number} of {update.total}){again}")
            self._progress = ProgressDisplay(self._console)
            return
        is_shown = isinstance(update, api.Notice) or (self._console.is_terminal and not isinstance(update, api.Planned))
        if self._progress is not None and is_shown:
            self._progress.show(update)
