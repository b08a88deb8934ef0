"""500 executions at a GPU's scale are forecast within 2 % as before, no verdict changed."""

from pathlib import Path

import pytest

from tests.unit.plan import drawn


def test_drawn_executions_are_forecast_as_they_were() -> None:
    rows, moved = drawn.compared()
    assert len(rows) == drawn.COUNT
    keep = 'if meant: python -m tests.unit.plan.drawn "REASON"'
    assert not moved, "\n".join([f"{len(moved)} answers of {drawn.COUNT} moved; {keep}", *moved[:20]])


def test_stored_answers_are_those_of_the_last_reason() -> None:
    lines = [line.split(maxsplit=2) for line in drawn.REASONS.read_text(encoding="utf-8").splitlines()]
    assert all(len(line) == 3 for line in lines)
    assert lines[-1][1] == drawn.digest(), "drawn.tsv was written without a reason; tests/unit/plan/drawn.py has one"


def test_answers_are_written_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, before = list(drawn.stored()), drawn.STORED.read_bytes()
    for name in ("STORED", "REASONS"):
        monkeypatch.setattr(drawn, name, tmp_path / name)
    with pytest.raises(SystemExit, match="written with a reason"):
        drawn.write(rows, reason=" ")
    assert not drawn.STORED.exists()
    drawn.write(rows, reason="a rule\ncounts more")
    assert drawn.STORED.read_bytes() == before
    assert drawn.REASONS.read_text().endswith(f" {drawn.digest()} a rule counts more\n")
