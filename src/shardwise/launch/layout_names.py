"""The names of layouts in `verify` and `compare`: a strategy, or a product such as `fsdp+pp`."""

import difflib
import re
from dataclasses import replace
from math import prod

from shardwise.errors import InputError
from shardwise.spec.job.validation_errors import FROM_OTHER_TOOLS
from shardwise.spec.layout.axes import STRATEGIES, Layout, Schedule
from shardwise.spec.support.trained import TRAINED_WAYS

SINGLE = "single"

#: The layout that the job itself states.
JOB = "job"

#: The ways that cut the model in stages -> their pipeline schedule.
STAGINGS: dict[str, Schedule] = {
    "mp": "sequential",
    "pp": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "zero_bubble": "zero_bubble",
}

#: Ways that split the model; in a product each has two ranks, and the way of the data has the rest.
SPLITS = (*STAGINGS, "tp", "cp")

#: Experts dealt among pairs of ranks with different samples; of `fsdp` without a way of the data.
DEALT = "ep"

#: Ways by their names, beside `single` and `job`.
WAYS = tuple(dict.fromkeys((*STRATEGIES, *STAGINGS, DEALT)))

#: The name of `EVERY_WAY`.
ALL = "all"

#: What `verify` runs where nothing is named: one layout of each kind.
DEFAULT = (SINGLE, "ddp", "zero1", "fsdp", "tp", "cp", "mp", "pp", "fsdp+tp", "fsdp+pp")

#: Products that `all` runs.
PRODUCTS = ("ddp+pp", "fsdp+pp", "fsdp+mp", "fsdp+tp", "tp+pp", "hsdp+tp", "fsdp+cp", "fsdp+tp+pp")

#: Every single way of models without experts, each schedule, and the products.
EVERY_WAY = tuple(dict.fromkeys((*(way for way in TRAINED_WAYS if way != DEALT), *STAGINGS, *PRODUCTS)))

#: The fewest processes that make each way what it is.
_FEWEST = {SINGLE: 1, "hsdp": 4, DEALT: 1}

_NAME = re.compile(r"([a-z0-9_+]+?)(?:-(\d+))?")


def parsed(text: str) -> tuple[str, int | None]:
    """A name and its processes: `fsdp-4`; `pp:gpipe` is `gpipe`. Raises InputError: no layout."""
    match = _NAME.fullmatch(text.replace("pp:1f1b", "pp").replace("pp:", ""))
    if match is None or not _is_layout(match[1]):
        known = (SINGLE, JOB, ALL, *WAYS)
        near = difflib.get_close_matches(text, known, n=1)
        others = f"; the layouts are {', '.join(known)}, and fsdp+pp is a product"
        hint = f"; did you mean {near[0]!r}?" if near else others
        hint = f"; {FROM_OTHER_TOOLS[text]}" if text in FROM_OTHER_TOOLS else hint
        raise InputError(f"--layouts names {text!r}, which is no layout{hint}; fsdp-4 is fsdp on 4 processes")
    return match[1], int(match[2]) if match[2] else None


def _is_layout(name: str) -> bool:
    """Whether a name is one way, or at most one of the data times different ways of the model."""
    ways = name.split("+")
    if len(ways) == 1:
        return name in {SINGLE, JOB, *WAYS}
    data = [way for way in ways if way not in (*SPLITS, DEALT)]
    stagings = [way for way in ways if way in STAGINGS]
    return set(ways) <= set(WAYS) and len(set(ways)) == len(ways) and len(data) <= 1 and len(stagings) <= 1


def fewest(name: str) -> int:
    """The fewest processes that make a layout what it is."""
    return max(2 if name == DEALT else 1, prod(_FEWEST.get(way, 2) for way in name.split("+")))


def layout_of(name: str, size: int) -> Layout:
    """The layout of a name on so many processes. Raises ValueError: they do not divide into it."""
    ways = name.split("+")
    if DEALT in ways:
        return replace(layout_of("+".join([way for way in ways if way != DEALT]) or "fsdp", size), ep=2)
    staging = next((way for way in ways if way in STAGINGS), None)
    if len(ways) == 1:
        if staging is not None:
            return Layout(pp=size, schedule=STAGINGS[staging])
        return Layout() if name == SINGLE else Layout.from_strategy(name, world_size=size)
    splits = [way for way in ways if way in SPLITS]
    left, odd = divmod(size, 2 ** len(splits))
    if odd or (len(splits) == len(ways) and left > 1):
        raise ValueError(
            f"{name} has 2 ranks for each of {', '.join(splits)}, which {size} processes do not divide into"
        )
    data = next((way for way in ways if way not in SPLITS), None)
    layout = Layout() if data is None else Layout.from_strategy(data, world_size=left)
    schedule = layout.schedule if staging is None else STAGINGS[staging]
    tp, cp = (2 if axis in ways else 1 for axis in ("tp", "cp"))
    return replace(layout, pp=1 if staging is None else 2, tp=tp, cp=cp, schedule=schedule)
