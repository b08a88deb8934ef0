"""`shardwise plan --list models` and `--list gpus`: the names that the catalogue knows."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from shardwise import api
from shardwise.errors import InputError
from shardwise.spec.offers import format_dollars
from shardwise.units import format_bytes, format_count

KINDS = ("models", "gpus")


def print_catalogue(kind: str, console: Console) -> None:
    """A line for each entry: its name, and its size. Raises InputError: there is no such list."""
    if kind not in KINDS:
        raise InputError(f"--list {kind}: there is no such list; write --list {' or --list '.join(KINDS)}")
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    for model in api.known_models() if kind == "models" else ():
        table.add_row(model.name, f"{format_count(model.shape.num_parameters)} parameters", model.hub_id)
    for gpu in api.known_gpus() if kind == "gpus" else ():
        price = "no price known" if gpu.usd_per_hour is None else f"{format_dollars(gpu.usd_per_hour)} an hour"
        table.add_row(gpu.name, format_bytes(gpu.memory_bytes), price)
    console.print(table)
