"""Parts of the page that are there once their files are: ranks measured alone on one GPU, and step times after a probe.

python -m accuracy.grid.elsewhere    # prints them
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from accuracy.grid.compare import Compared, compared, figures, read_cells
from accuracy.grid.timed import LAYOUTS, Timed, promised, timed

FOLDER = Path(__file__).parent
ALONE, TIMES, RATES = "alone.csv", "times.csv", "rates.json"
#: An earlier round of the same steps, and the probe before it.
TIMES_AGAIN, RATES_AGAIN = "times-quiet.csv", "rates-quiet.json"

_ALONE = """\
## Ranks of larger worlds, alone on one GPU
`make accuracy-gpu` trains two steps of {ranks} ranks, of {runs} runs, on one {device}, each in a process group of the
layout's size in which it is alone, with real tensors. Messages bring nothing there; what is allocated is as on that
many GPUs. Peaks are those of `torch.cuda`, without the context:

| layout | ranks | forecast: median error | P95 | lowest | highest | rehearsed: worst |
|---|---|---|---|---|---|---|"""
_TIMES = """\
## Step times after `shardwise probe`
Jobs of toy models on one and two CPU processes, timed as `shardwise compare` times them, beside forecasts of today with
the rates that were probed (`python -m accuracy.grid.timing --out accuracy/grid`: times.csv, rates.json). The
median error of {count} steps is {error:.1%}. The layout that is forecast to be the fastest takes at most 5 % more time
than the fastest in {near} of {jobs} jobs, and {worst:.1%} more at worst:

| layout | jobs | median error, signed | median error | largest |
|---|---|---|---|---|"""

_TIMES_WHY = """\
Nothing else was at work, but the processor was shared. The goal of a median error of 10 % is met; that of a choice
within 5 % in nine jobs of ten is missed by one job, llama in full on 128 tokens: one process was forecast to be the
fastest and took 9.9 % more time than ddp, by the fastest step of each 4.4 %. Known: what a probe does not time at the
job's own size it takes from a small model: the seconds of FSDP around a unit (zero2 and fsdp are forecast 14 to 21 %
too slow), and what threads of one process wait for each other. In bfloat16 attention's backward takes up to 18 times a
forward on this processor, and a probe times it by type and length. Layouts whose measured times differ by less than the
noise decide the choice. Would decide: the same table on a machine of which nobody else has a part."""

_AGAIN = """\
An earlier round with a probe of its own (times-quiet.csv, rates-quiet.json) had a median error of {error:.1%}, and a
choice within 5 % in {near} of {jobs} jobs, {worst:.1%} slower at worst. That probe timed the step of one process once,
after the others; now it takes them in turns. The same steps took {noise:.1%} more or less time, in the
median."""


def elsewhere(folder: Path = FOLDER) -> str:
    """Both sections, or what of them has its files in a folder."""
    made = [_alone(folder / ALONE)] if (folder / ALONE).is_file() else []
    if (folder / TIMES).is_file() and (folder / RATES).is_file():
        first = timed(folder / TIMES, folder / RATES)
        there = (folder / TIMES_AGAIN).is_file() and (folder / RATES_AGAIN).is_file()
        made.append(_times(first, timed(folder / TIMES_AGAIN, folder / RATES_AGAIN) if there else []))
    return "\n".join(made)


def measured_alone(file: Path) -> Iterator[tuple[str, Compared]]:
    """Each kind of rank with the device that it was measured on."""
    with file.open(newline="") as opened:
        devices = {row["cell"]: row["device"] for row in csv.DictReader(opened)}
    for device, (cell, ranks) in zip(devices.values(), read_cells(file), strict=True):
        for one in compared(cell, ranks, gpu=None if device == "cpu" else device):
            yield device, one


def _alone(file: Path) -> str:
    found = list(measured_alone(file))
    every = [one for _, one in found]
    device = " and ".join(sorted({device for device, _ in found}))
    lines = [_ALONE.format(ranks=len(every), runs=len({one.cell for one in every}), device=device)]
    for layout in dict.fromkeys(one.cell.layout for one in every):
        lines.append(_row(layout, [one for one in every if one.cell.layout == layout]))
    return "\n".join([*lines, _row("**all**", every), ""])


def _row(name: str, alike: Sequence[Compared]) -> str:
    rehearsed = [one.measured.rehearsed / one.measured.peak - 1 for one in alike if one.measured.rehearsed is not None]
    worst = f"{max(rehearsed, key=abs):+.1%}" if rehearsed else "-"
    return f"| {name} | {' | '.join(figures([one.error for one in alike]))} | {worst} |"


def _times(cells: Sequence[Timed], again: Sequence[Timed]) -> str:
    lines = [_TIMES.format(count=len(cells), **promised(cells))]
    for layout in LAYOUTS:
        off = [cell.error for cell in cells if cell.layout == layout]
        if off:
            size = median(map(abs, off))
            lines.append(f"| {layout} | {len(off)} | {median(off):+.1%} | {size:.1%} | {max(off, key=abs):+.1%} |")
    if again:
        first = {(cell.job, cell.layout): cell.measured for cell in cells}
        noise = median(abs(cell.measured / first[cell.job, cell.layout] - 1) for cell in again)
        lines += ["", _AGAIN.format(noise=noise, **promised(again))]
    return "\n".join([*lines, "", _TIMES_WHY, ""])


if __name__ == "__main__":
    sys.stdout.write(elsewhere())
