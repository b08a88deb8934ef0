"""What runs measured over what was forecast for them: a user's finished ones, one a line; and
errors of memory forecasts that were measured, with the chance that follows that a plan fits. What
other trainers do with memory that this one does not, as data with a source each."""

import json
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import ClassVar, Self

from pydantic import ConfigDict

from shardwise.catalog.prices import read_table
from shardwise.spec.job.strict import OPEN, from_plain
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import append_line, cache_root

#: Of the file's end, what is read: some 400 runs.
_READ_BYTES = 128 * 1024
#: A ratio outside of these is none that a run measures.
_LEAST, _MOST = 0.01, 100.0
#: Models of like runs differ in size by no more.
_LIKE_SIZE = 4


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """What runs have in common that are compared. `device`: the GPU's name, or the processor's;
    `probed`: times were forecast with rates that were measured; `parameters`: of the model."""

    device: str
    probed: bool
    strategy: str
    method: str
    precision: str
    compile: bool
    parameters: int

    def is_like(self, other: Self) -> bool:
        """The same, but for the model, which may be up to four times as large or small."""
        small, large = sorted((self.parameters, other.parameters))
        return 0 < large <= _LIKE_SIZE * small and _but_size(self) == _but_size(other)


_but_size = attrgetter(*(one.name for one in fields(RunKind) if one.name != "parameters"))


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run's peak inside the allocator and median step, measured ÷ forecast; None: not known."""

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    kind: RunKind
    memory: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Medians of the runs of a kind."""

    runs: int
    memory: float | None
    seconds: float | None


def calibration_file() -> Path:
    """Where runs are noted, beside the hardware file."""
    return cache_root() / "calibration.jsonl"


def note_run(run: MeasuredRun) -> None:
    """Appends a run. Raises OSError: the file cannot be written."""
    append_line(calibration_file(), asdict(run))


def noted_runs() -> tuple[list[MeasuredRun], str | None]:
    """The last runs, and what is wrong with the file, as a sentence."""
    file = calibration_file()
    try:
        if not file.exists():
            return [], None
        if not file.is_file():
            return [], f"{file} is no file, so that what earlier runs measured is not known; remove it"
        with file.open("rb") as opened:
            start = max(0, opened.seek(0, os.SEEK_END) - _READ_BYTES)
            opened.seek(start)
            lines = opened.read(_READ_BYTES).splitlines()[1 if start else 0 :]
    except OSError as error:
        return [], f"{file} cannot be read ({error.strerror}), so that what earlier runs measured is not known"
    runs = [_read(line) for line in lines]
    bad = runs.count(None)
    said = f"{bad} of {len(lines)} lines of {file} are no runs and left out; remove the file" if bad else None
    return [run for run in runs if run is not None], said


def calibration(runs: Sequence[MeasuredRun], kind: RunKind) -> Calibration | None:
    """What is known of runs of a kind, or None."""
    alike = [run for run in runs if run.kind.is_like(kind)]
    if not alike:
        return None
    memory = [run.memory for run in alike if run.memory is not None]
    seconds = [run.seconds for run in alike if run.seconds is not None]
    return Calibration(
        runs=len(alike), memory=median(memory) if memory else None, seconds=median(seconds) if seconds else None
    )


def _read(line: bytes) -> MeasuredRun | None:
    try:
        run = from_plain(MeasuredRun, json.loads(line))
    except (TypeError, ValueError, RecursionError):
        return None
    ratios = [ratio for ratio in (run.memory, run.seconds) if ratio is not None]
    return run if ratios and all(_LEAST <= ratio <= _MOST for ratio in ratios) else None


OWN, OTHERS = "this trainer on CPU processes", "other stacks"
#: A group of fewer rows is pooled with all of its stack.
LEAST_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Errors:
    """One group of measured_errors.toml. `ratios`: measured over forecast, in growing order, with
    as much weight between each two; `rows`, `sources`: that they are of."""

    name: str
    rows: int
    sources: int
    ratios: tuple[float, ...]

    def chance_below(self, ratio: float) -> float:
        """The share of measured runs whose memory was at most so many times their forecast; never
        more certain than the number of rows allows (Vovk et al., Algorithmic Learning in a Random
        World, 2005: conformal predictors)."""
        at = bisect_right(self.ratios, ratio)
        least = 1 / (self.rows + 1)
        share = (at - 0.5) / len(self.ratios)
        if 0 < at < len(self.ratios):
            low, high = self.ratios[at - 1], self.ratios[at]
            share += (ratio - low) / (high - low) / len(self.ratios) if high > low else 0.0
        elif at == len(self.ratios):
            share = 1.0
        return min(1 - least, max(least, share))


def layout_kind(layout: Layout) -> str:
    """Split: a rank has part of each product; sharded: it gathers what it lacks; else whole."""
    if layout.world_size > layout.data_world_size:
        return "split"
    return "sharded" if layout.dp_shard > 1 else "whole"


def group_name(stack: str, kind: str = "") -> str:
    """Of a group."""
    return f"{stack}, {kind}" if kind else stack


@cache
def _groups() -> dict[str, Errors]:
    made = read_table("measured_errors").items()
    return {name: replace(Errors(name=name, **row), ratios=tuple(row["ratios"])) for name, row in made}


def errors_of(stack: str, layout: Layout) -> Errors:
    """Those of the layout's kind, or of the whole stack where these are too few."""
    found = _groups()
    return found.get(group_name(stack, layout_kind(layout))) or found[stack]


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
