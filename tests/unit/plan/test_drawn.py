"""500 executions at a GPU's scale are forecast as they were when somebody last looked: within 2 %, no verdict changed.

`pytest tests/unit/plan/test_drawn.py --update-golden` draws and asks them anew; say in the commit why answers move.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.unit.plan.drawn import COUNT, Drawn, answer, draw

STORED = Path(__file__).with_name("drawn.tsv")
#: How far an answer may move; and how near to what there is the upper end of a peak lies where a verdict may.
MOVES, NEAR = 0.02, 0.012


def test_drawn_executions_are_forecast_as_they_were(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        rows = [(*drawn, said.peak, int(said.fits), f"{said.seconds:.6g}") for drawn, said in draw()]
        with STORED.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None).writerows(rows)
    moved: list[str] = []
    lines = STORED.read_text(encoding="utf-8").splitlines()
    for line in lines:
        *question, peak, fits, seconds = line.split("\t")
        said = answer(Drawn._make([*question[:-1], int(question[-1])]))
        far = {"peak": said.peak / int(peak) - 1, "step": said.seconds / float(seconds) - 1}
        moved += [f"{name} {by:+.2%}: {line}" for name, by in far.items() if abs(by) > MOVES]
        if said.fits != bool(int(fits)) and abs(said.high / said.capacity - 1) > NEAR:
            moved.append(f"fits {said.fits} at {said.high / said.capacity:.3f} of what there is: {line}")
    assert len(lines) == COUNT
    assert not moved, "\n".join([f"{len(moved)} of {COUNT} answers moved", *moved[:20]])
