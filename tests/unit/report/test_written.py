"""How figures and outcomes are written."""

import io
from pathlib import Path

import pytest

from shardwise.cli.console import make_console
from shardwise.cli.report import print_report
from shardwise.report.collect import collect
from shardwise.report.contents import RunOutcome
from tests.unit.report.runs import RunMaker, make_job


def test_a_name_cannot_control_the_terminal(tmp_path: Path) -> None:
    maker = RunMaker(root=tmp_path / "run", job=make_job(model="a\x1b]0;title\x07\nb\u009b31m")).planned().started()
    assert collect(maker.run).headline.startswith("a\ufffd]0;title\ufffd b\ufffd31m, lora")


def test_the_terminal_says_where_a_run_went_on_to_another_length(tmp_path: Path) -> None:
    maker, out = RunMaker(root=tmp_path / "run").planned().started(), io.StringIO()
    print_report(collect(maker.run), make_console(out))
    assert "schedule" not in out.getvalue()
    maker.num_steps = 80
    print_report(collect(maker.began(51).run), make_console(out))
    assert "\nlearning rate schedule: of 50 steps, of 80 steps from step 51 on\n" in out.getvalue()


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (RunOutcome(state="finished", step=50, total_steps=50), "Finished at step 50 of 50."),
        (RunOutcome(state="stopped", step=7, signal="SIGTERM"), "Stopped at step 7 by signal SIGTERM."),
        (RunOutcome(state="failed", step=7, failure="rank 1: no memory"), "Failed after step 7: rank 1: no memory"),
        (RunOutcome(state="unfinished", step=0, phase="loading"), "Still running, or killed: step 0, last phase load"),
        (RunOutcome(state="running", step=7, phase="training"), "Running: step 7, phase training."),
    ],
)
def test_each_end_has_its_sentence(outcome: RunOutcome, sentence: str) -> None:
    assert sentence in outcome.sentence
