"""Parts of the page that are there once their files are: ranks measured alone on one GPU, and step times after a probe.

python -m accuracy.grid.elsewhere    # prints them
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from accuracy.grid.compare import Compared, compared, figures, read_cells
from accuracy.grid.timed import LAYOUTS, Timed, regret, timed

FOLDER = Path(__file__).parent
ALONE, TIMES, RATES = "alone.csv", "times.csv", "rates.json"

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
The goal of a median error of 10 % is met, that of a choice within 5 % in nine jobs of ten is missed. Known: what a
probe does not time at the job's own size it takes from a small model: the seconds of FSDP around a unit, and what
threads of one process wait for each other, which other programs made longer: one process is forecast too slow by it. In
bfloat16 attention's backward takes up to 18 times a forward on this processor, and a probe times it by type and length.
Other programs were at work, more in the first jobs than in the last; a message waits for the rank that is late. The
probe was between the first round, of all jobs, and the second, of one; with another before the first, which had no
steps in bfloat16 and none on all cores, the median error of the first round was 10.8 %. Layouts whose measured times
differ by less than the noise decide the choice. Would decide: the same table on a machine of which nobody else has a
part."""


def elsewhere(folder: Path = FOLDER) -> str:
    """Both sections, or what of them has its files in a folder."""
    made = [_alone(folder / ALONE)] if (folder / ALONE).is_file() else []
    if (folder / TIMES).is_file() and (folder / RATES).is_file():
        made.append(_times(timed(folder / TIMES, folder / RATES)))
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


def _times(cells: Sequence[Timed]) -> str:
    lost = [regret(list(alike)) for _, alike in groupby(cells, key=lambda cell: cell.job)]
    error = median(abs(cell.error) for cell in cells)
    near, jobs, worst = sum(one <= 0.05 for one in lost), len(lost), max(lost)
    lines = [_TIMES.format(count=len(cells), error=error, near=near, jobs=jobs, worst=worst)]
    for layout in LAYOUTS:
        off = [cell.error for cell in cells if cell.layout == layout]
        if off:
            size = median(map(abs, off))
            lines.append(f"| {layout} | {len(off)} | {median(off):+.1%} | {size:.1%} | {max(off, key=abs):+.1%} |")
    return "\n".join([*lines, "", _TIMES_WHY, ""])


if __name__ == "__main__":
    sys.stdout.write(elsewhere())
