"""Layouts side by side, from run directories with known figures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwise.report.collect import collect
from shardwise.report.pages.plan_page import bars_of, versus_html
from shardwise.report.versus import Contender, Turns, Versus, contender, ranked
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.timeline import Lane, Timeline, TimelineSpan
from shardwise.spec.run import RunDirectory, announce, read_metrics
from tests.unit.report.runs import GIB, RunMaker
from tests.unit.report.test_html import HOSTILE, Page, safe_page


def executed(*, micros: int = 4, **degrees: Any) -> Execution:
    return Execution(layout=Layout(**degrees), micro_batch_size=1, gradient_accumulation_steps=micros)


def ran(root: Path, layout: str, *, seconds: float, shares: Any = None, busy: Any = None, **noted: Any) -> Contender:
    """A finished run on two ranks, by the seconds of its steps and its ranks' busy shares."""
    maker = RunMaker(root=root / layout, num_steps=10).planned().prepared().started().stepped().measured().ended()
    records = [{**record, "step_seconds": seconds} for record in read_metrics(maker.run)]
    for record in records:
        record["gpu_utilization_by_rank"] = shares or [0.9, 0.9]
        record["gpu_utilization"] = record["gpu_utilization"] if busy is None else busy
    maker.run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return contender(layout, processes=2, run=maker.run, report=collect(maker.run), **{"execution": None, **noted})


def test_stages_that_work_one_at_a_time_are_explained_by_how_it_ran_and_not_by_its_name(tmp_path) -> None:
    mp = ran(tmp_path, "job-2", seconds=3.0, busy=0.4, execution=executed(pp=2, schedule="sequential"))
    found = Versus(contenders=ranked([ran(tmp_path, "mp-2", seconds=2.0), mp]), job="tiny")
    (note,) = found.notes
    assert note.startswith("job-2: one of its 2 stages works at a time while the others wait, so each GPU is busy for ")
    assert "at most about 1/2 of a step; pp overlaps several" in note
    plain = json.loads(json.dumps(replace(found, unable=(("tp-2", "not trained"),)).to_json(), allow_nan=False))
    assert (plain["version"], plain["notes"]) == (1, [note])
    assert plain["unable"] == [{"layout": "tp-2", "reason": "not trained"}]
    one = plain["contenders"][1]
    assert one["turns"] == {"stages": 2, "because": "schedule"}
    step = one["figures"]["step time"]
    assert (step["measured"], step["forecast"], step["unit"]) == (3.0, 2.2, "seconds")
    assert one["ranks"][1]["measured_peak_bytes"] == 20 * GIB
    assert note in Page(versus_html(found)).words


def test_what_is_to_be_said_of_a_comparison_stands_beside_the_table(tmp_path) -> None:
    one, two = (ran(tmp_path, name, seconds=2.0) for name in ("ddp-2", "mp-2"))
    announce(RunDirectory(Path(two.run)), "training", total_steps=10, first_step=6)
    again = contender("mp-2", processes=2, run=RunDirectory(Path(two.run)), report=collect(RunDirectory(Path(two.run))))
    assert Versus(contenders=(one,), job="tiny").notes == ()
    found = Versus(contenders=ranked([replace(one, num_steps=3), again]), job="tiny", nominal=True)
    assert set(found.notes) == {
        "mp-2: stopped and resumed; its total time is that of its steps, without loading",
        "runs of 3 steps or fewer count their first steps, which are slow; --steps 13 says more",
        "forecast times are nominal: the rates of this machine's CPU processes were not measured",
    }
    spans = (TimelineSpan(rank=0, stream="compute", kind="forward", name="forward", start=0.0, end=1.0),)
    lanes = (Lane(ranks=(0,), computing=0.5),)
    step = Timeline(strategy="mp", seconds=2.0, micro_batches=4, drawn_micro_batches=2, lanes=lanes, spans=spans)
    words = Page(versus_html(found, {"mp-2": step})).words
    for said in (*found.notes, "One step of mp-2, as forecast", "2 of the step's 4 micro-batches as forecast"):
        assert said in words


@pytest.mark.parametrize(
    ("degrees", "micros", "turns"),
    [
        ({"dp_replicate": 4}, 1, None),
        ({"pp": 4}, 4, None),
        ({"pp": 4}, 1, Turns(stages=4, because="micro-batch")),
        ({"pp": 2, "dp_shard": 2, "schedule": "sequential"}, 8, Turns(stages=2, because="schedule")),
    ],
)
def test_stages_take_turns_where_one_micro_batch_is_under_way(degrees, micros, turns, tmp_path) -> None:
    one = ran(tmp_path, "x-4", seconds=1.0, execution=executed(micros=micros, **degrees))
    assert one.turns == turns
    said = "a smaller train.micro_batch_size makes several, which overlap"
    told = " ".join(Versus(contenders=(one,), job="tiny").notes).endswith(said)
    assert told == (turns is not None and turns.because == "micro-batch")


def test_the_fastest_stands_first_and_a_run_without_a_measured_step_last(tmp_path) -> None:
    runs = [ran(tmp_path, name, seconds=s) for name, s in (("fsdp-2", 3.0), ("ddp-2", 2.0), ("single-1", 5.0))]
    run = RunMaker(root=tmp_path / "none").planned().run
    none = contender("tp-2", processes=2, run=run, report=collect(run))
    found = Versus(contenders=ranked([none, *runs]), job="tiny")
    assert [one.layout for one in found.contenders] == ["ddp-2", "fsdp-2", "single-1", "tp-2"]
    said = "ddp-2 is the fastest: 2.00 s per step, 1.50 times as fast as fsdp-2, 2.50 times as fast as single-1"
    assert found.sentence == said
    assert none.figure("step time").written("measured") == "–"
    assert Versus(contenders=(none,), job="tiny").sentence == "no layout has measured the time of a step"


def test_the_page_shows_every_layout_to_one_scale_and_runs_nothing(tmp_path) -> None:
    layouts = [ran(tmp_path, name, seconds=s) for name, s in (("a-2", 4.0), ("b-2", 1.0))]
    found = Versus(contenders=ranked(layouts), job=HOSTILE)
    source = versus_html(replace(found, unable=(("tp-2", HOSTILE),)))
    shown = safe_page(source)
    for words in ("b-2 is the fastest", "a-2", "Step time", "GPU utilisation", "Peak memory", "tp-2: "):
        assert words in shown.words
    assert source.count("<svg") == 3 * 2 * 2, "each figure, measured and forecast, of each layout"
    widths = {(bar.label, bar.under): bar.segments[0].width for bar in bars_of(found, "step time").bars}
    expected = {("a-2", "measured"): 100, ("b-2", "measured"): 25, ("b-2", "forecast"): 55}
    assert {bar: widths[bar] for bar in expected} == pytest.approx(expected)
    assert bars_of(Versus(contenders=(), job="tiny"), "step time") is None
