"""The plan's page and its charts: safe, self-contained, to scale, and with the plan's figures."""

import re
from dataclasses import replace
from typing import Any

import pytest

from shardwise.report.collect import thin
from shardwise.report.contents import MemoryReport, RankReport
from shardwise.report.pages.charts import MemoryBar, memory_chart, merged, timeline_chart
from shardwise.report.pages.plan_page import plan_html
from shardwise.report.pages.run_page import memory_by_rank
from shardwise.spec.plan.timeline import Lane, Timeline, TimelineSpan
from tests.unit.cli.plans import nothing_fits, plan
from tests.unit.report.runs import FORECAST_PARTS, GIB, MEASURED_PARTS
from tests.unit.report.test_html import HOSTILE, Page, safe_page

LANES = (Lane(ranks=(0, 1), computing=0.5), Lane(ranks=(2, 3), computing=0.25))


def span(rank: int, start: float, end: float, *, name: str = "forward of layer 0") -> TimelineSpan:
    return TimelineSpan(rank=rank, stream="compute", kind="forward", name=name, start=start, end=end)


def timeline(*spans: TimelineSpan) -> Timeline:
    return Timeline(strategy="pp", seconds=4.0, micro_batches=8, drawn_micro_batches=4, lanes=LANES, spans=spans)


def test_the_page_has_the_plan_and_asks_for_nothing() -> None:
    source = plan_html(plan(), timeline(span(0, 0, 2), span(2, 2, 4)))
    page = safe_page(source)
    for words in ("fsdp fits on 4x RTX-6000-Ada", "capacity 48.0 GiB", "chosen", "does not fit", "busy 93 %", "$12.50"):
        assert words in page.words
    names = re.findall(r'<th scope="col"[^>]*>([^<]*)<', source.split("<h2>Candidates</h2>")[1])
    assert names[:3] == ["Strategy", "Step", "Cost"], "what a phone shows"
    assert "Computing" not in names
    assert "it is the fastest of 2 that fit" in page.words
    assert page.words.count("tp is not trained by this version") == 1
    assert "4 of the step's 8 micro-batches as forecast" in page.words


def test_a_plan_where_nothing_fits_has_a_page_and_hostile_names_are_text() -> None:
    page = safe_page(plan_html(replace(nothing_fits(), advice=("on 8x H100-SXM it fits",)), None))
    assert "Nothing fits on 4x RTX-6000-Ada" in page.words
    assert "on 8x H100-SXM it fits" in page.words and "One step" not in page.words
    made = plan()
    safe_page(plan_html(replace(made, job={**made.job, "model": HOSTILE}, hardware={"name": HOSTILE}), None))


def test_what_is_not_trained_is_said_at_the_top_and_offloads_at_their_candidate() -> None:
    made = plan()
    assert "offload" not in plan_html(made, None)
    untrained = ("precision fp16 is not trained by this version",)
    used = replace(made.candidates[0].execution, offload="optimizer")
    best = replace(made.candidates[0], execution=used, not_trained=untrained)
    words = Page(plan_html(replace(made, candidates=(best, *made.candidates[1:])), None)).words
    assert "planned, not trained by this version" in words and "offload optimizer" in words


def test_lanes_say_which_gpus_they_are_and_how_much_they_compute() -> None:
    chart = timeline_chart(timeline(span(0, 0, 2), span(2, 2, 3)))
    assert [(bar.label, bar.total) for bar in chart.bars] == [("GPU 0-1", "50 %"), ("GPU 2-3", "25 %")]
    (part,) = chart.bars[1].segments
    assert (part.start, part.width) == (50.0, 25.0)
    assert part.tip == "GPU 2-3: forward of layer 0, 1.00 s from 2.00 s"
    assert chart.table.rows[0] == ("GPU 0-1", "50 % of the step", "2.00 s")
    found = merged([span(0, i / 1000, (i + 1) / 1000, name=f"forward of layer {i}") for i in range(1000)], within=0.001)
    assert len(found) < 400, "stretches too small to be seen are drawn as one"
    assert found[0][1].startswith("forward of layer 0 to forward of layer")
    assert (found[0][2], found[-1][3]) == (0.0, 1.0)


def test_five_candidates_are_shown_and_a_bar_that_is_too_long_is_broken() -> None:
    made = plan()
    many = replace(made, candidates=(*made.candidates, *[made.candidates[-1]] * 5))
    source = plan_html(many, None)
    shown, folded = source.split("<h2>Candidates</h2>")[1].split("<details>")[:2]
    assert (shown.count('<th scope="row">'), folded.count('<th scope="row">')) == (5, len(many.candidates) - 5)
    assert f"<summary>{len(many.candidates) - 5} more</summary>" in source
    stacks = [MemoryBar(label=name, parts={"weights": size}) for name, size in (("near", 9), ("far", 900))]
    drawn = memory_chart(stacks, title="Memory", capacity=10, most=1.6)
    assert [bar.broken for bar in drawn.bars] == [False, True]
    assert drawn.bars[1].segments[0].width == 100


def test_bars_are_as_long_as_their_bytes() -> None:
    parts: dict[str, Any] = {"forecast_parts": FORECAST_PARTS, "measured_parts": MEASURED_PARTS}
    rank = RankReport(rank=0, **parts, forecast_peak_bytes=21 * GIB, measured_peak_bytes=20 * GIB)
    unknown: dict[str, Any] = dict.fromkeys(("kind", "peak_low_bytes", "peak_high_bytes", "peak_instant"))
    chart = memory_by_rank(MemoryReport(**unknown, capacity_bytes=80 * GIB, worst_rank=0, ranks=(rank,)))
    forecast, measured = chart.bars
    widths = {part.look.removeprefix("part "): part.width * 80 / 100 for part in forecast.segments}
    assert widths == pytest.approx({"weights": 10, "optimizer": 4, "other": 7, "context": 1})
    assert sum(part.width for part in measured.segments) == pytest.approx(20 * 100 / 80)
    assert (forecast.under, forecast.total) == ("forecast", "22.0 GiB")
    assert (measured.under, measured.total) == ("measured", "20.0 GiB")
    assert chart.table.rows[1] == ("rank 0 measured", "10.0 GiB", "4.00 GiB", "6.00 GiB", "0 B", "20.0 GiB")


def test_thinning_keeps_the_ends_and_every_spike() -> None:
    points = [(step, 1.0) for step in range(10_000)]
    points[7777] = (7777, 50.0)
    points[3333] = (3333, -4.0)
    kept = thin(points)
    assert len(kept) <= 600
    assert {points[0], points[-1], (7777, 50.0), (3333, -4.0)} <= set(kept)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
