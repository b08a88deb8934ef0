"""Layouts side by side, from run directories with known figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.report.bars import Bar, bar_chart
from shardwise.report.collect import collect
from shardwise.report.versus import Contender, contender, utilization_by_rank, versus
from shardwise.report.versus_page import versus_html
from shardwise.spec.run import RunDirectory, read_metrics
from tests.unit.report.runs import GIB, RunMaker
from tests.unit.report.test_html import ALLOWED, HOSTILE, Page


def ran(root: Path, layout: str, *, seconds: float, processes: int = 2, shares: Any = None) -> Contender:
    """A finished run whose steps take so long, and whose ranks are busy for such shares of them."""
    maker = RunMaker(root=root / layout, world_size=processes, num_steps=10)
    maker.planned().prepared().started().stepped().measured().ended()
    run = RunDirectory(root / layout)
    records = [{**record, "step_seconds": seconds} for record in read_metrics(run)]
    for record in records:
        record["gpu_utilization_by_rank"] = shares or [0.9] * processes
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    return contender(layout, processes=processes, run=run, report=collect(run))


def test_the_fastest_stands_first_and_the_sentence_has_the_ratios(tmp_path: Path) -> None:
    runs = [ran(tmp_path, name, seconds=s) for name, s in (("fsdp-2", 3.0), ("ddp-2", 2.0), ("single-1", 5.0))]
    found = versus(runs, job="tiny")
    assert [one.layout for one in found.contenders] == ["ddp-2", "fsdp-2", "single-1"]
    assert found.sentence == (
        "ddp-2 is the fastest: 2.00 s per step, 1.50 times as fast as fsdp-2, 2.50 times as fast as single-1"
    )


def test_a_staircase_is_explained(tmp_path: Path) -> None:
    found = versus([ran(tmp_path, name, seconds=s) for name, s in (("ddp-2", 2.0), ("mp-2", 3.0))], job="tiny")
    (note,) = found.notes
    assert note.startswith("mp-2 is a staircase: of its 2 processes one works at a time")
    assert found.to_json()["notes"] == [note]


def test_each_figure_has_its_forecast_beside_it(tmp_path: Path) -> None:
    one = ran(tmp_path, "ddp-2", seconds=2.5)
    assert one.figure("step time").measured == 2.5
    assert one.figure("step time").forecast is not None
    assert one.written("throughput", "measured") == "1,600 tokens/s"
    assert one.figure("GPU utilisation").measured == 0.9
    assert one.figure("peak memory").measured == 20 * GIB
    assert one.figure("peak memory").forecast == 21 * GIB
    assert one.figure("total time").measured is not None
    assert one.final_loss == read_metrics(RunDirectory(tmp_path / "ddp-2"))[-1]["loss"]


def test_ranks_are_told_apart_where_they_were_measured_apart(tmp_path: Path) -> None:
    one = ran(tmp_path, "ddp-2", seconds=1.0, shares=[0.25, None])
    assert [rank.gpu_utilization for rank in one.ranks] == [0.25, None]
    assert one.by_rank == ("rank 0: 25.0 % busy, 20.0 GiB (forecast 21.0 GiB); rank 1: 20.0 GiB (forecast 21.0 GiB)")


def test_utilisation_by_rank_leaves_the_warm_up_out() -> None:
    records = [{"gpu_utilization_by_rank": [share, 1.0]} for share in (0.0, 0.0, 0.0, 0.4, 0.6)]
    assert utilization_by_rank(records) == {0: pytest.approx(0.5), 1: 1.0}
    assert utilization_by_rank([{"gpu_utilization": 0.5}]) == {}


def test_a_run_without_a_measured_step_stands_last_and_has_no_ratio(tmp_path: Path) -> None:
    slow = ran(tmp_path, "ddp-2", seconds=9.0)
    RunMaker(root=tmp_path / "none").planned()
    none = contender(
        "fsdp-2", processes=2, run=RunDirectory(tmp_path / "none"), report=collect(RunDirectory(tmp_path / "none"))
    )
    found = versus([none, slow], job="tiny")
    assert [one.layout for one in found.contenders] == ["ddp-2", "fsdp-2"]
    assert found.sentence == "ddp-2 is the fastest: 9.00 s per step"
    assert none.written("step time", "measured") == "–"
    assert versus([none], job="tiny").sentence == "no layout has measured the time of a step"


def test_compare_json_is_plain_and_names_its_figures(tmp_path: Path) -> None:
    found = versus([ran(tmp_path, "ddp-2", seconds=2.0)], job="tiny", unable=[("tp-2", "not trained")])
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["version"] == 1
    assert plain["unable"] == [{"layout": "tp-2", "reason": "not trained"}]
    step = plain["contenders"][0]["figures"]["step time"]
    assert (step["measured"], step["unit"]) == (2.0, "seconds")
    assert step["error_percent"] is not None
    assert plain["contenders"][0]["ranks"][1]["measured_peak_bytes"] == 20 * GIB


def test_the_page_shows_every_layout_and_runs_nothing(tmp_path: Path) -> None:
    runs = [ran(tmp_path, name, seconds=s) for name, s in (("fsdp-2", 3.0), ("ddp-2", 2.0))]
    source = versus_html(versus(runs, job=HOSTILE, unable=[("tp-2", HOSTILE)]))
    shown = Page(source)
    assert set(shown.tags) <= ALLOWED
    assert not any(name.startswith("on") or name in ("style", "src", "href") for name, _ in shown.attributes)
    for words in ("ddp-2 is the fastest", "fsdp-2", "Step time", "GPU utilisation", "Peak memory", "tp-2: "):
        assert words in shown.words
    assert source.count("<svg") == 3


def test_bars_are_drawn_to_one_scale() -> None:
    drawn = bar_chart(
        [Bar(name="a", measured=10.0, forecast=5.0), Bar(name="b", measured=2.5, forecast=None)],
        ident="x",
        title="time",
        width=400,
        write="{:g} s".format,
    )
    widths = [
        float(part.partition('"')[0]) for part in drawn.split("<rect ")[1:] for part in [part.partition('width="')[2]]
    ]
    assert len(widths) == 3
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)
    assert widths[2] == pytest.approx(widths[0] / 4, abs=0.1)
    assert "a: measured 10 s, forecast 5 s; b: measured 2.5 s" in drawn
    nothing = bar_chart([Bar(name="a", measured=None, forecast=None)], ident="x", title="t", width=400, write=str)
    assert "not measured" in nothing
