"""Rows and lines for the terminal: the same figures as the page, in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.report.collect import collect
from shardwise.report.nouns import Outcome
from shardwise.report.text import outcome_sentence, summary_lines, table_rows, write_error, write_power, write_value
from tests.unit.report.runs import RunMaker, finished_run, make_job


def test_rows_say_what_was_forecast_what_was_measured_and_the_error(tmp_path: Path) -> None:
    rows = {row.what: row for row in table_rows(collect(finished_run(tmp_path / "run")))}
    assert (rows["peak memory"].forecast, rows["peak memory"].measured) == ("21.0 GiB", "20.0 GiB")
    assert rows["peak memory"].error == "+5.0 %"
    assert rows["weights"].error == "exact"
    assert rows["weights"].indent
    assert (rows["context"].measured, rows["context"].error) == ("not measured", "–")
    assert (rows["step time"].measured, rows["step time"].error) == ("2.00 s", "+10.0 %")
    assert rows["throughput"].measured == "2,000 tokens/s"


def test_without_a_plan_rows_say_that_nothing_was_forecast(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    run.plan.unlink()
    rows = table_rows(collect(run))
    assert {row.forecast for row in rows} == {"not forecast"}
    assert {row.error for row in rows} == {"–"}


def test_the_summary_says_what_ran_how_it_ended_and_how_the_loss_fell(tmp_path: Path) -> None:
    lines = summary_lines(collect(finished_run(tmp_path / "run")))
    assert lines[0] == "example/tiny-llama, lora, fsdp on 2x H100-SXM"
    assert lines[1] == "Finished at step 50 of 50."
    assert lines[2].endswith("12.3k trained (8.04 %)")
    assert lines[3].startswith("loss 2.557 ")
    assert len(lines) == 4


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run", job=make_job(model="a\x1b]0;title\x07\nb\u009b31m")).planned().started()
    text = "\n".join(summary_lines(collect(maker.run)))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u009b" not in text
    assert text.startswith("a\ufffd]0;title\ufffd b\ufffd31m, lora")


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            Outcome(state="stopped", step=7, total_steps=50, signal="SIGTERM"),
            "Stopped at step 7 of 50 by signal SIGTERM.",
        ),
        (Outcome(state="failed", step=7, failure="rank 1: no memory"), "Failed after step 7: rank 1: no memory"),
        (Outcome(state="unfinished", step=0, phase="loading"), "ended without a word: step 0, last phase loading."),
    ],
)
def test_each_end_has_its_sentence(outcome: Outcome, sentence: str) -> None:
    assert sentence in outcome_sentence(outcome)


def test_values_are_written_with_their_unit() -> None:
    assert write_value(0.0312, "seconds") == "31.2 ms"
    assert write_value(125.0, "seconds") == "2 min 05 s"
    assert write_value(0.412, "share") == "41.2 %"
    assert write_value(0.000042, "share") == "0.0042 %"
    assert write_value(0.0, "share") == "0.0 %"
    assert write_value(12.34, "tokens_per_second") == "12.3 tokens/s"
    assert write_power(1.5e-4) == "1.5e-4"
    assert write_power(0.0) == "0"


@pytest.mark.parametrize(
    ("percent", "written"), [(None, "–"), (0.0, "exact"), (-12.34, "-12.3 %"), (5e4, "+50,000 %"), (0.01, "+0.0 %")]
)
def test_an_error_states_its_sign(percent: float | None, written: str) -> None:
    assert write_error(percent) == written
