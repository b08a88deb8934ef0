"""What was asked of a plan beyond whether a job fits: the value that was solved for, and the hardware to take."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table

from shardwise.spec.offers import Offer, Offers
from shardwise.spec.plan import Plan
from shardwise.units import format_bytes, format_seconds

MAX_OFFERS = 10
MAX_NOTES = 6
_COLUMNS = ("hardware", "best for", "layout", "peak", "of", "step", "run", "cost")
_FIGURES = 3  # columns of words; the others are figures


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
    if offers.laid_out:
        console.print(_table(offers))
        console.print(offers.prices, style="dim")
    notes = offers.notes()
    for note in notes[:MAX_NOTES]:
        console.print(textwrap.fill(note, width=console.width, initial_indent="  ", subsequent_indent="  "))
    if len(notes) > MAX_NOTES:
        console.print(f"  ... and {len(notes) - MAX_NOTES} more; --json lists all")
    console.print()


def _table(offers: Offers) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    for index, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if index < _FIGURES else "right", no_wrap=True)
    shown = [option for n, option in enumerate(offers.laid_out) if n < MAX_OFFERS or option.best_for]
    for option in shown:
        table.add_row(*_cells(option), style="bold" if option.best_for else "")
    return table


def _cells(option: Offer) -> tuple[str, ...]:
    return (
        option.hardware,
        ", ".join(option.best_for),
        option.strategy or "",
        "" if option.peak_bytes is None else format_bytes(option.peak_bytes),
        format_bytes(option.capacity_bytes),
        "" if option.step_seconds is None else format_seconds(option.step_seconds),
        "-" if option.total_seconds is None else format_seconds(option.total_seconds),
        option.price or "no price",
    )
