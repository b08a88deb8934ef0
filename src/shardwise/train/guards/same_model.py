"""Checks that all ranks read the same model files: one name may stand for two folders on two machines."""

from __future__ import annotations

from shardwise.parallel.mesh import World
from shardwise.train.guards.checks import GuardError, gather
from shardwise.units import format_ranks


def agree_on_model(world: World, content: dict[str, str]) -> None:
    """Compares the hashes of the model's files by name; the same GuardError on every rank names one that differs."""
    everyone = gather(world, content)
    names = sorted({name for files in everyone for name in files})
    differing = [name for name in names if len({files.get(name) for files in everyone}) > 1]
    if not differing:
        return
    holders: dict[str | None, list[int]] = {}
    for rank, files in enumerate(everyone):
        holders.setdefault(files.get(differing[0]), []).append(rank)
    held = "; ".join(_held(file, ranks) for file, ranks in holders.items())
    raise GuardError(
        f"ranks read different models: of {_some(differing)}, {held}. Each would train its part of another model; copy "
        "one folder to every machine, or download it again"
    )


def _held(file: str | None, ranks: list[int]) -> str:
    verb = "has" if len(ranks) == 1 else "have"
    return f"{format_ranks(ranks)} {verb} {'none' if file is None else f'one with hash {file[:8]}'}"


def _some(names: list[str]) -> str:
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} (and {more} other file{'s' if more > 1 else ''})"
