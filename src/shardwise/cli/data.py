"""`shardwise data`: what will training see of my rows?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwise import api
from shardwise.cli.console import AsJson, Job, Sets, figures_table, make_console, print_json
from shardwise.units import printable

if TYPE_CHECKING:
    from shardwise.spec.data_facts import DataFacts, RowLengths, RowShown

WIDEST_BAR = 40
HEADINGS = ("tokens", "rows", "up to here")


def data(job: Job, sets: Sets = None, as_json: AsJson = False) -> None:
    """Say what training will see of a job's rows: tokens, lengths, template, marks.

    They are prepared as `train` prepares them, which then begins at once.

    Exits 0: they can be trained on, 2: they cannot, or bad input.
    """
    counted = api.data(job, overrides=sets or [])
    if as_json:
        print_json({"version": 1, "accepted": counted.refusal is None, **asdict(counted.facts)})
    else:
        console = make_console()
        print_data(counted.facts, console)
        print_rows(counted.facts.preview, console)
        if counted.refusal is None:
            console.print("next: `shardwise train` with the same job starts with these rows at once")
    if counted.refusal is not None:
        raise typer.Exit(counted.refusal.exit_code)


def print_data(facts: DataFacts, console: Console) -> None:
    """What was counted, line by line, and the lengths as a histogram."""
    from shardwise.cli.plan_table import fill

    for name, sentence in facts.lines():
        console.print(fill(printable(sentence), f"{name:<12}", width=console.width))
    if facts.lengths is not None:
        console.print()
        console.print(_histogram(facts.lengths, width=console.width))
    console.print()


def _histogram(lengths: RowLengths, *, width: int) -> Table:
    """A bar for each bin, `#` up to `max_length` and `x` beyond."""
    rows = lengths.labelled()
    room = width - sum(max(len(row[at]) for row in (*rows, HEADINGS)) + 2 for at in range(3))
    table = figures_table(*HEADINGS)
    table.columns[0].justify = "right"
    table.add_column("", no_wrap=True)
    most = max(number for _, _, number in lengths.bins)
    for row, (low, _, number) in zip(rows, lengths.bins, strict=True):
        letter, colour = ("x", "red") if low > lengths.max_length else ("#", "blue")
        size = -(-number * max(1, min(WIDEST_BAR, room)) // most)
        table.add_row(*row, Text(letter * size, style=colour))
    return table


def print_rows(rows: Sequence[RowShown], console: Console) -> None:
    """Rows as the model reads them; what is trained stands between « and »."""
    if rows:
        console.print("rows as the model reads them; «trained» tokens count in the loss:")
    for row in rows:
        console.print(f"\n{printable(row.where)}", style="dim", soft_wrap=True)
        pieces = [(f"«{text}»", "bold green") if trained else (text, "") for text, trained in row.text]
        console.print(Text.assemble(*((printable(text), style) for text, style in pieces)), soft_wrap=True)
    console.print()
