"""How figures and outcomes are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.report.collect import collect
from shardwise.report.nouns import Outcome
from shardwise.report.written import Unit, write_error, write_power, write_value
from tests.unit.report.runs import RunMaker, make_job


def test_a_name_cannot_control_the_terminal(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run", job=make_job(model="a\x1b]0;title\x07\nb\u009b31m")).planned().started()
    assert collect(maker.run).headline.startswith("a\ufffd]0;title\ufffd b\ufffd31m, lora")


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (Outcome(state="finished", step=50, total_steps=50), "Finished at step 50 of 50."),
        (
            Outcome(state="stopped", step=7, total_steps=50, signal="SIGTERM"),
            "Stopped at step 7 of 50 by signal SIGTERM.",
        ),
        (Outcome(state="failed", step=7, failure="rank 1: no memory"), "Failed after step 7: rank 1: no memory"),
        (Outcome(state="unfinished", step=0, phase="loading"), "Still running, or killed: step 0, last phase loading."),
    ],
)
def test_each_end_has_its_sentence(outcome: Outcome, sentence: str) -> None:
    assert sentence in outcome.sentence


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (125.0, "seconds", "2 min 05 s"),
        (0.412, "share", "41.2 %"),
        (0.000042, "share", "0.0042 %"),
        (0.0, "share", "0.0 %"),
        (12.34, "tokens_per_second", "12.3 tokens/s"),
    ],
)
def test_values_are_written_with_their_unit(value: float, unit: Unit, written: str) -> None:
    assert write_value(value, unit) == written
    assert (write_power(1.5e-4), write_power(0.0)) == ("1.5e-4", "0")


@pytest.mark.parametrize(
    ("percent", "written"), [(None, "–"), (0.0, "exact"), (-12.34, "-12.3 %"), (5e4, "+50,000 %"), (0.01, "+0.0 %")]
)
def test_an_error_states_its_sign(percent: float | None, written: str) -> None:
    assert write_error(percent) == written
