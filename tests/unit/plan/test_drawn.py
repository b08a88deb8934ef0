"""500 executions at a GPU's scale are forecast as they were when somebody last looked: within 2 %, no verdict changed.

`pytest tests/unit/plan/test_drawn.py --update-golden` draws and asks them anew; say in the commit why answers move.
"""

from __future__ import annotations

import csv

import pytest

from tests.unit.plan.drawn import COUNT, MOVES, STORED, answer, draw, stored

#: How near to what there is the upper end of a peak lies where a verdict may change.
NEAR = 0.012


def test_drawn_executions_are_forecast_as_they_were(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        rows = [(*drawn, said.peak, int(said.fits), f"{said.seconds:.6g}") for drawn, said in draw()]
        with STORED.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None).writerows(rows)
    moved: list[str] = []
    answers = list(stored())
    for drawn, peak, fits, seconds in answers:
        said = answer(drawn)
        far = {"peak": said.peak / peak - 1, "step": said.seconds / seconds - 1}
        moved += [f"{name} {by:+.2%}: {drawn}" for name, by in far.items() if abs(by) > MOVES]
        if said.fits != fits and abs(said.high / said.capacity - 1) > NEAR:
            moved.append(f"fits {said.fits} at {said.high / said.capacity:.3f} of what there is: {drawn}")
    assert len(answers) == COUNT
    assert not moved, "\n".join([f"{len(moved)} of {COUNT} answers moved", *moved[:20]])
