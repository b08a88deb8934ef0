"""Stacks: what other trainers do with memory that this one does not, as data with a source each"""

from dataclasses import dataclass, replace
from functools import cache

from shardwise.catalog.prices import read_table


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One row of stacks.toml, whose head says what its numbers are. `checked`: whether its step was
    measured, or which published rows are forecast with it."""

    name: str
    version: str
    source: str
    setting: str
    checked: str
    logit_bytes: int
    optimizer_copies: int
    master_bytes: int = 0
    every_second_product: bool = False
    slices_loss: bool = False
    tile: tuple[int, int] = (0, 0)
    bucket: int = 0
    half_engine: bool = False


@cache
def known_stacks() -> dict[str, Stack]:
    """By the name of the export's target."""
    rows = read_table("stacks").items()
    return {name: replace(Stack(name=name, **row), tile=tuple(row.get("tile", (0, 0)))) for name, row in rows}
