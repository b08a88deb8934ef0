"""What was asked of a plan beyond whether a job fits: the value that was solved for, and the hardware to take."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table

from shardwise.spec.offers import Offer, Offers
from shardwise.spec.plan import Plan
from shardwise.units import format_gib

COLUMNS = ("hardware", "best for", "layout", "time", "cost", "typical/h", "lowest/h", "peak memory")
_WORDS = 3  # columns of words; the others are figures


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
        console.print(_table(offers))
        console.print(offers.prices, style="dim")
    for note in offers.notes():
        console.print(textwrap.fill(note, width=console.width, initial_indent="  ", subsequent_indent="  "))
    console.print()


def _table(offers: Offers) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if index < _WORDS else "right", no_wrap=True)
    for option in offers.shown:
        table.add_row(*_cells(option), style="bold" if option.best_for else "")
    return table


def _cells(option: Offer) -> tuple[str, ...]:
    peak = (
        "" if option.peak_bytes is None else f"{format_gib(option.peak_bytes)} of {format_gib(option.capacity_bytes)}"
    )
    return (
        option.hardware,
        option.answers,
        option.written or "",
        option.duration or "",
        option.cost or "not known",
        option.typical,
        option.lowest,
        peak,
    )
