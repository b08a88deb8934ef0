"""What was asked of a plan beyond whether a job fits: the value that was solved for, and the hardware to take."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table

from shardwise.spec.offers import Offers
from shardwise.spec.plan import Plan

WORDS = 3  # columns of words; the others are figures
WIDE, LEFT_OUT_WHERE_NARROW = 100, ("layout", "lowest/h")


def print_answers(plan: Plan, console: Console) -> None:
    """The answer first; nothing where a plan was all that was asked for."""
    if plan.solved is not None:
        console.print(plan.solved.sentence, style="bold")
        console.print()
    if plan.offers is not None:
        console.print(plan.offers.sentence, style="bold")
        console.print()
        _print_offers(plan.offers, console)


def _print_offers(offers: Offers, console: Console) -> None:
    if offers.shown:
        console.print(_table(offers, width=console.width))
        console.print(offers.prices, style="dim")
    for note in offers.notes():
        console.print(textwrap.fill(note, width=console.width, initial_indent="  ", subsequent_indent="  "))
    console.print()


def _table(offers: Offers, *, width: int) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    names, *rows = offers.table()
    kept = [index for index, name in enumerate(names) if width >= WIDE or name not in LEFT_OUT_WHERE_NARROW]
    for index in kept:
        is_word = index < WORDS
        table.add_column(names[index], justify="left" if is_word else "right", no_wrap=index == 0 or not is_word)
    for option, row in zip(offers.shown, rows, strict=True):
        table.add_row(*(row[index] for index in kept), style="bold" if option.best_for else "")
    return table
