"""Forecasts asked again for the measured cells: by rank, how far from what was measured.

python -m accuracy.grid.compare [--cells accuracy/grid/cells.csv] [--each]
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from accuracy.grid.cells import (
    HELD_OUT,
    LED_COMPILED,
    LED_TO_A_RULE,
    PIPELINES,
    ROWS,
    Cell,
    Measured,
    job_of,
    work_of_run,
)
from accuracy.grid.rows import Forwards, measured_forwards
from accuracy.rivals import RIVALS
from shardwise.catalog.config import shape_from_data
from shardwise.plan import forecast_seen
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.work.work import Work
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution
from shardwise.spec.model.shape import ModelShape

CELLS, COMPILED, PREFERENCES = (
    Path(__file__).parent / name for name in ("cells.csv", "compiled.csv", "preferences.csv")
)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A rank that is alike to others: of these, the one that was seen best. `planned_peak` is for rows that are all as
    long as the longest, `forecast_peak` for those that it was given."""

    cell: Cell
    measured: Measured
    job: Job
    model: ModelShape
    execution: Execution
    forecast_weights: int
    forecast_optimizer: int
    forecast_peak: int
    planned_peak: int

    @property
    def planned_error(self) -> float:
        """As `error`, of what a plan says before the rows' lengths are known."""
        return self.planned_peak / self.measured.peak - 1

    @property
    def error(self) -> float:
        """Of the peak, relative to what was measured."""
        return self.forecast_peak / self.measured.peak - 1

    @property
    def note(self) -> str:
        """What is special about it."""
        unseen = "" if self.measured.seen_whole else f"{self.measured.unseen / self.measured.peak:.1%} unseen"
        return ", ".join(filter(None, (unseen, "" if self.exact else "persistent bytes differ")))

    @property
    def exact(self) -> bool:
        """Weights and optimizer states are those that were forecast."""
        return (self.forecast_weights, self.forecast_optimizer) == (self.measured.weights, self.measured.optimizer)


def read_cells(file: Path) -> Iterator[tuple[Cell, list[Measured]]]:
    """Cells and their ranks."""
    with file.open(newline="") as opened:
        for _, rows in groupby(csv.DictReader(opened), key=lambda row: row["cell"]):
            ranks = list(rows)
            yield _typed(Cell, ranks[0]), [_typed(Measured, row) for row in ranks]


def _typed(kind: Any, row: dict[str, str]) -> Any:
    read = {
        "int": int,
        "float": float,
        "str": str,
        "bool": lambda text: text == "True",
        "float | None": lambda text: float(text) if text else None,
        "int | None": lambda text: int(text) if text else None,
    }
    return kind(**{one.name: read[str(one.type)](row[one.name]) for one in fields(kind) if one.name in row})


def compared(cell: Cell, ranks: list[Measured], *, gpu: str | None = None) -> Iterator[Compared]:
    """Each kind of rank, of which one was measured at least; on CPU processes, or on GPUs of a name."""
    job, model = job_of(cell, model="model", data="rows.jsonl"), shape_from_data(cell.config, file="config.json")
    work = work_of_run(cell, ranks[0], job, shape=model, gpu=gpu)
    for alike in forecast_memory(work).ranks:
        best = _seen_best([one for one in ranks if one.rank in alike.ranks])
        planned = alike.peak_bytes - alike.parts.get("context", 0)
        given = list(_peaks_for_rows(cell, work, best)) if cell.rows == "padded" else []
        steps = given if best.step is None else given[best.step - 1 : best.step]
        yield Compared(
            cell=cell,
            measured=best,
            job=job,
            model=model,
            execution=work.execution,
            forecast_weights=alike.parts["weights"],
            forecast_optimizer=alike.parts["optimizer"],
            forecast_peak=max(steps, default=planned),
            planned_peak=planned,
        )


def _seen_best(alike: list[Measured]) -> Measured:
    """Of those that were seen whole the fullest, for each saw other steps whole."""
    whole = [one for one in alike if one.seen_whole]
    return max(whole, key=lambda one: one.peak) if whole else min(alike, key=lambda one: one.unseen)


def _peaks_for_rows(cell: Cell, work: Work, seen: Measured) -> Iterator[int]:
    """What is forecast for the rows that a rank had in each step that was measured, as a run's report asks for it."""
    found: dict[Forwards, int] = {}
    limit = work.job.model_copy(update={"data": work.job.data.model_copy(update={"max_length": cell.length})})
    for step in measured_forwards(cell, limit, work.execution.layout, rank=seen.rank):
        if step in found:
            yield found[step]
            continue
        (first, later), (begun, then) = step.lengths, step.trained
        forecast = forecast_seen(
            limit,
            model=work.model,
            cluster=work.cluster,
            execution=work.execution,
            first=first,
            later=later,
            document=seen.document,
            trained=(begun, then),
        )
        found[step] = forecast.peaks[seen.rank]
        yield found[step]


_HEAD = "| median error | P95 | lowest | highest |"
_COMPILED_BESIDE = """\
One cell is left out, gpt_neox under `fsdp`, full training in mixed precision: torch's inductor writes C++ for gradients
of its biases that does not compile. Of runs on an H100, the three with compiled blocks are forecast within 2 % (a test
holds them); they have their peaks in the loss, none in a block's backward.

The lowest and the highest:
"""
_OPENING = """\
## Our own trainer, on small runs
{runs} runs of toy models on one to four CPU processes: all that a rank allocates is counted over whole steps, and
compared with the plan of the same job. `python -m accuracy.grid.measure` makes the runs in some 25 minutes;
`accuracy/grid/cells.csv` has them. Models of 4 million parameters and rows of 128 or 256 tokens make small terms large:
messages, copies and what one operator works in. Bytes between steps (weights, optimizer states) are forecast exactly in
{exact} of {kinds} kinds of rank. The peak of {unsure} of these is not certain (see below); the tables of peaks have the
other {sure}. Blocks are not compiled in these; compiled ones are below. In padded runs rows are shorter than
the longest, and the forecast is asked for those that a step was given, as a run's report asks; the line `as planned`
has what the plan said, for rows that are all as long as the longest. In {once} of the runs FSDP reduces gradients
once in a step (`python -m accuracy.grid.measure --reduced-once`). {pipelines} are of pipelines whose ranks have two
stages (interleaved) or cut backwards in two (zero_bubble), with four micro-batches a step, the others with two
(`--pipelines`); they were the first of their kinds, and up to 20 % too little was forecast for them: gradients that a
backward of inputs leaves for that of weights, and messages that gloo keeps. Any of these families may have led to a
rule; the lines `held out` have one that did not (see below). Of the peak:
"""
_HELD_OUT = """\
Held out is {families}, chosen before it was measured: {runs} further runs (`python -m accuracy.grid.measure
--held-out`), which only the lines `held out` and those of rehearsals have. No rule was made from them. Bytes between
steps are exact in {exact} of {kinds} kinds of rank.

Before it, {led} was held out. Two things fell short there:

- Where FSDP reduces gradients once in a step, which no run had done before, up to 30 % too much was forecast: all
  gradients, whole, from the first forward on, and again as they were reduced. Now they are counted as micro-batches
  make them, and as the last one's backward lets go of them. That rule came of these runs, so that the lines of {led}
  are named `led to a rule`. What was 12 % too high in another rank came of the comparison, with the rank whose rows
  had most trained positions. Padded runs are now asked for the rows of the rank that was measured.
- Dropout is off in these runs. With what the configuration of {led} has by default (0.1 for attention and for what
  blocks add), the first 7 runs were forecast 8 to 64 % too low: the model's own dropout was not counted. Now it is
  (a test measures runs of {led} and OPT with it).
"""
_COMPILED = """\
{runs} further runs have compiled blocks (`train.compile: true`; `python -m accuracy.grid.measure --compiled`, on a
machine with a C++ compiler; `accuracy/grid/compiled.csv`). Steps in which anything is compiled are not measured. Bytes
between steps are exact in {exact} of {kinds} kinds of rank. Rules were made from the first {led} runs; those of the
line `measured` came after. Of the peak:
"""
_PREFERENCES = """\
{runs} further runs learn from preferences (`python -m accuracy.grid.measure --preferences`;
`accuracy/grid/preferences.csv`): pairs count two rows, and the reference's forwards are parts of a step. Bytes between
steps are exact in {exact} of {kinds} kinds of rank. Two rules were mended by them: a reference's forwards have nothing
in flight beside them, and selective recompute under `cp` keeps both pieces of attention (before, 5.8 % too much and
5.5 % too little). Of the peak:
"""
_GOAL = """\
Goal, of these and of compiled runs below: median 2 %, P95 5 %, none further off than 8 %. The forecast is as fine as
the answer needs; what is exact is a rehearsal, which runs the trainer's own code. The lowest and the highest:
"""
_REHEARSED = """\
Rehearsals of the same ranks (`shardwise rehearse`; `python -m accuracy.grid.rehearse`), which run the trainer's own
code on tensors without numbers, on the rows of the run. Where it is not known which step was measured, the fullest of
all is compared. Experts and context parallel are not rehearsed:
"""
_LEFT_OUT = """\
Left out are {unsure} kinds of rank whose peak is not certain, because a thread of gloo freed tensors, which the
profiler does not see. Formulas of other tools on the runs of full training among them:
"""
#: What the table groups cells by.
_SIDES = ("layout", "method", "recompute", "rows", "precision", "family")


def table(every: Iterable[Compared]) -> list[tuple[str, ...]]:
    """(side, value, ranks, median, P95, lowest, highest) of those whose peak was seen whole: of families that rules may
    have been made from, then of each that was held out until it led to a rule, and of each that is held out."""
    seen = [one for one in every if one.measured.seen_whole]
    sure = [one for one in seen if not one.cell.apart]
    groups = _by_side(sure)
    groups["gradients", "reduced once"] = [one for one in sure if one.measured.reduce_once]
    for side, families in (("led to a rule", LED_TO_A_RULE), ("held out", HELD_OUT)):
        for family in families:
            mine = [one for one in seen if one.cell.family == family]
            groups[side, family] = mine
            groups[side, f"{family}, gradients reduced once"] = [one for one in mine if one.measured.reduce_once]
            groups[side, f"{family}, the others"] = [one for one in mine if not one.measured.reduce_once]
    return [(*name, *figures([one.error for one in group])) for name, group in groups.items() if group]


def table_compiled(every: Iterable[Compared]) -> list[tuple[str, ...]]:
    """The same of runs with compiled blocks."""
    sure = [one for one in every if one.measured.seen_whole]
    groups = _by_side(sure)
    cells = list(dict.fromkeys(one.cell for one in sure))
    groups["measured", "after the rules"] = [one for one in sure if one.cell in cells[LED_COMPILED:]]
    return [(*name, *figures([one.error for one in group])) for name, group in groups.items() if group]


def table_preferences(every: Iterable[Compared]) -> list[tuple[str, ...]]:
    """The same of runs that learn from preferences, by objective too."""
    groups = _by_side([one for one in every if one.measured.seen_whole], (*_SIDES, "objective"))
    return [(*name, *figures([one.error for one in group])) for name, group in groups.items() if group]


def _by_side(some: list[Compared], sides: Sequence[str] = _SIDES) -> dict[tuple[str, str], list[Compared]]:
    """All, and those of each value of each side."""
    groups = {("all", ""): some}
    for side in sides:
        for value in sorted({getattr(one.cell, side) for one in some}):
            groups[side, value] = [one for one in some if getattr(one.cell, side) == value]
    return groups


def figures(errors: list[float]) -> tuple[str, ...]:
    """(number, median, P95, lowest, highest) of some errors."""
    off = sorted(abs(error) for error in errors)
    p95 = off[math.ceil(0.95 * len(off)) - 1]
    return (str(len(off)), f"{median(off):.1%}", f"{p95:.1%}", f"{min(errors):+.1%}", f"{max(errors):+.1%}")


def section(cells: Path = CELLS, compiled_cells: Path = COMPILED) -> str:
    """Of docs/accuracy.md."""
    compiled = [one for cell, ranks in read_cells(compiled_cells) for one in compared(cell, ranks)]
    both = [one for cell, ranks in read_cells(cells) for one in compared(cell, ranks)]
    every, held_out = [one for one in both if not one.cell.apart], [one for one in both if one.cell.held_out]
    exact = sum(one.exact for one in every)
    padded = [one for one in every if one.cell.rows == "padded" and one.measured.seen_whole]
    sure = sorted((one for one in every if one.measured.seen_whole), key=lambda one: one.error)
    unsure = sum(not one.measured.seen_whole for one in every)
    rehearsed = {rows: list(_rehearsed(both, rows)) for rows in ROWS}
    runs, kinds = len({one.cell for one in every}), len(every)
    once = len({one.cell for one in every if one.measured.reduce_once})
    piped = len({one.cell for one in every if one.cell.layout in PIPELINES})
    lines = [
        _OPENING.format(
            runs=runs, once=once, pipelines=piped, exact=exact, kinds=kinds, unsure=unsure, sure=kinds - unsure
        ),
        f"| by | value | ranks {_HEAD}",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table(both)),
        f"| as planned | padded | {' | '.join(figures([one.planned_error for one in padded]))} |",
        "",
        _held_out(held_out),
        _GOAL,
        *_ends(sure),
        "",
        *_compiled(compiled),
        *_preferences([one for cell, ranks in read_cells(PREFERENCES) for one in compared(cell, ranks)]),
        _REHEARSED,
        f"| rehearsed | ranks {_HEAD}",
        "|---|---|---|---|---|---|",
        *(f"| {rows} rows | {' | '.join(figures(errors))} |" for rows, errors in rehearsed.items()),
        "",
        _LEFT_OUT.format(unsure=unsure),
        f"| tool | ranks {_HEAD}",
        "|---|---|---|---|---|---|",
        *_beside_others(every),
        "",
    ]
    return "\n".join(lines)


def _held_out(every: Sequence[Compared]) -> str:
    return _HELD_OUT.format(
        families=", ".join(HELD_OUT),
        led=", ".join(LED_TO_A_RULE),
        runs=len({one.cell for one in every}),
        exact=sum(one.exact for one in every),
        kinds=len(every),
    )


def _compiled(every: Sequence[Compared]) -> Iterator[str]:
    sure = sorted((one for one in every if one.measured.seen_whole), key=lambda one: one.error)
    exact = sum(one.exact for one in every)
    runs = len({one.cell for one in every})
    yield _COMPILED.format(runs=runs, exact=exact, kinds=len(every), led=LED_COMPILED)
    yield f"| by | value | ranks {_HEAD}"
    yield "|---|---|---|---|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in table_compiled(every))
    yield ""
    yield _COMPILED_BESIDE
    yield from _ends(sure)
    yield ""


def _preferences(every: Sequence[Compared]) -> Iterator[str]:
    sure = sorted((one for one in every if one.measured.seen_whole), key=lambda one: one.error)
    exact, runs = sum(one.exact for one in every), len({one.cell for one in every})
    yield _PREFERENCES.format(runs=runs, exact=exact, kinds=len(every))
    yield f"| by | value | ranks {_HEAD}"
    yield "|---|---|---|---|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in table_preferences(every))
    yield "\nThe lowest and the highest:\n"
    yield from _ends(sure)
    yield ""


def _ends(ranks: Sequence[Compared]) -> list[str]:
    """The lowest and the highest of some in order."""
    return [f"- {one.error:+.1%}: {one.cell.words}" for one in (*ranks[:3], *ranks[-3:])]


def _rehearsed(every: Iterable[Compared], rows: str) -> Iterator[float]:
    for one in every:
        peak = one.measured.rehearsed
        if one.cell.rows == rows and one.measured.seen_whole and peak is not None:
            yield peak / one.measured.peak - 1


def _beside_others(every: Iterable[Compared]) -> Iterator[str]:
    full = [one for one in every if one.cell.method == "full" and one.measured.seen_whole]
    yield f"| Shardwise | {' | '.join(figures([one.error for one in full]))} |"
    for rival in RIVALS:
        errors = [rival.bytes_per_gpu(one) / one.measured.peak - 1 for one in full]
        yield f"| {rival.name} | {' | '.join(figures(errors))} |"


def main() -> None:
    """Prints the table, and each rank with --each."""
    parser = argparse.ArgumentParser(prog="python -m accuracy.grid.compare", description=__doc__)
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument("--each", action="store_true")
    arguments = parser.parse_args()
    every = [one for cell, ranks in read_cells(arguments.cells) for one in compared(cell, ranks)]
    if arguments.each:
        for one in sorted(every, key=lambda one: one.error):
            sys.stdout.write(f"{one.error:+7.1%}  rank {one.measured.rank}  {one.note}  {one.cell}\n")
    for row in table(every):
        sys.stdout.write("{:10} {:33} {:>4} median {:>6} P95 {:>6} lowest {:>7} highest {:>7}\n".format(*row))
    exact = sum(one.exact for one in every)
    sys.stdout.write(f"bytes between steps exact: {exact} of {len(every)}\n")


if __name__ == "__main__":
    main()
