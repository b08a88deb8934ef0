"""How figures and outcomes are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.report.collect import collect
from shardwise.report.nouns import Outcome
from shardwise.report.written import write_error, write_power, write_value
from tests.unit.report.runs import RunMaker, finished_run, make_job


def test_rows_say_what_was_forecast_what_was_measured_and_the_error(tmp_path: Path) -> None:
    rows = {row.what: row for row in collect(finished_run(tmp_path / "run")).comparisons}
    peak, step = rows["peak memory"], rows["step time"]
    assert (peak.written("forecast"), peak.written("measured"), peak.error_written) == (
        "21.0 GiB",
        "20.0 GiB",
        "+5.0 %",
    )
    assert rows["weights"].error_written == "exact"
    assert (rows["context"].written("measured", missing="none"), rows["context"].error_written) == ("none", "–")
    assert (step.written("measured"), step.error_written) == ("2.00 s", "+10.0 %")
    assert rows["throughput"].written("measured") == "2,000 tokens/s"


def test_the_headline_and_the_size_say_what_ran(tmp_path: Path) -> None:
    report = collect(finished_run(tmp_path / "run"))
    assert report.headline == "example/tiny-llama, lora, fsdp on 2x H100-SXM"
    assert report.outcome.sentence == "Finished at step 50 of 50."
    assert report.model_size.endswith("12.3k trained (8.04 %)")


def test_a_name_cannot_control_the_terminal(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run", job=make_job(model="a\x1b]0;title\x07\nb\u009b31m")).planned().started()
    assert collect(maker.run).headline.startswith("a\ufffd]0;title\ufffd b\ufffd31m, lora")


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
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
