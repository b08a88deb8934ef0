"""`shardwise rehearse`: will this plan really run, and does it fit?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from shardwise import api
from shardwise.cli.console import AsJson, Job, Sets, figures_table, make_console, print_answer
from shardwise.units import format_bytes, format_gib, format_ranks

if TYPE_CHECKING:
    from shardwise.spec.rehearsal import RankRehearsal


def rehearse(job: Job, sets: Sets = None, as_json: AsJson = False) -> None:
    """Run the training code of a plan on tensors without numbers, on each distinct rank, and count
    its memory.

    Exits 0: fits, 1: does not, 2: bad input, or something that training would refuse or fail at.
    """
    found = api.rehearse(job, overrides=sets or [], on_update=show_rehearsing)
    print_answer(found, _print_rehearsal, as_json=as_json)
    if not found.fits:
        raise typer.Exit(1)


def show_rehearsing(update: api.Rehearsing) -> None:
    """A line on stderr before each distinct rank."""
    among = "all ranks are alike" if update.total == 1 else f"{update.number} of {update.total} kinds"
    line = f"rehearsing {update.strategy}: rank {update.rank} ({among})"
    make_console(sys.stderr).print(line, style="dim", soft_wrap=True)


def _print_rehearsal(found: api.Rehearsal, console: Console) -> None:
    worst = found.worst
    fits = "fits" if found.fits else "does not fit"
    takes = f"{format_gib(found.reserved_bytes)} of {format_gib(found.capacity_bytes)}"
    answer = f"{found.execution.layout.strategy} {fits} on {found.hardware}: rehearsed peak {takes}"
    console.print(f"{answer}, in {worst.peak_instant}", style="bold", soft_wrap=True)
    if found.eager is not None:
        console.print(f"{found.eager[0].upper()}{found.eager[1:]}", soft_wrap=True)
    for rank in found.ranks:
        console.print(f"\n{format_ranks(rank.ranks)}: peak in {rank.peak_instant}", soft_wrap=True)
        console.print(_parts(rank))
    console.print(f"\nthe largest tensors at the peak of {format_ranks(worst.ranks)}:")
    table = figures_table("part", "size", "tensors", "type", "shape")
    table.add_column("made by", style="dim")
    for group in worst.tensors:
        shape = " x ".join(str(size) for size in group.shape)
        table.add_row(group.part, format_bytes(group.bytes), str(group.count), group.dtype, shape, group.maker)
    console.print(table)
    console.print(f"rehearsed in {found.seconds:.0f} s", style="dim")


def _parts(rank: RankRehearsal) -> Table:
    table = figures_table("", "forecast", "rehearsed", "forecast / rehearsed")
    forecasts = {**rank.forecast.parts, "peak": rank.forecast.peak_bytes}
    for part, size in {**rank.parts, "peak": rank.peak_bytes}.items():
        forecast = forecasts.get(part, 0)
        if size or forecast:
            ratio = f"{forecast / size:.3f}" if size else ""
            table.add_row(part, format_bytes(forecast), format_bytes(size), ratio)
    table.add_row("reserved", "", format_bytes(rank.peak_reserved_bytes), "")
    return table
