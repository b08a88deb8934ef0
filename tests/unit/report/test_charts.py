"""Charts draw what they are given, to scale, for one point as for many."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.report.charts import FARTHEST_CAPACITY, Reference, Series, capacity_in_sight, line_chart, memory_chart
from shardwise.report.curves import smooth, sparkline, thin
from shardwise.report.nouns import MemoryReport, RankReport
from shardwise.report.svg import Scale, nice_ticks
from tests.unit.report.runs import FORECAST_PARTS, GIB, MEASURED_PARTS

FINITE = st.floats(min_value=-1e18, max_value=1e18, allow_nan=False)


def draw(points: list[tuple[int, float]], **extra: object) -> ElementTree.Element:
    series = [Series(name="loss", points=points, look="smooth")]
    chart = line_chart(series, ident="a", title="Loss", width=400, height=200, write=lambda v: f"{v:.4g}", **extra)  # pyright: ignore[reportArgumentType]
    return ElementTree.fromstring(chart)


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text)]


def memory(*, capacity: int, measured: dict[str, int] | None = MEASURED_PARTS) -> MemoryReport:
    rank = RankReport(
        rank=0,
        forecast_parts=FORECAST_PARTS,
        measured_parts=measured,
        forecast_peak_bytes=21 * GIB,
        measured_peak_bytes=20 * GIB,
    )
    return MemoryReport(
        kind=None,
        capacity_bytes=capacity,
        peak_low_bytes=None,
        peak_high_bytes=None,
        peak_instant=None,
        worst_rank=0,
        ranks=(rank,),
    )


def test_one_point_is_a_dot_with_its_value_in_words() -> None:
    chart = draw([(1, 2.5)])
    (dot,) = chart.iter("circle")
    assert 0 < float(dot.get("cx", "nan")) < 400
    assert dot[0].text == "loss 2.5 at step 1"
    assert "loss: 2.5 at step 1" in (chart.findtext("desc") or "")


def test_a_line_goes_through_every_point_to_scale() -> None:
    (path,) = draw([(0, 0.0), (5, 10.0), (10, 5.0)]).iter("path")
    xs, ys = numbers(path.get("d", ""))[::2], numbers(path.get("d", ""))[1::2]
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.1)
    assert ys[2] == pytest.approx((ys[0] + ys[1]) / 2, abs=0.1)
    assert ys[1] < ys[2] < ys[0], "up is more"


def test_no_points_are_said_and_not_drawn() -> None:
    chart = draw([])
    assert [text.text for text in chart.iter("text")] == ["not measured"]


def test_the_reference_is_drawn_even_where_it_lies_far_from_the_line() -> None:
    chart = draw([(1, 2.0), (2, 2.0)], reference=Reference(name="forecast", value=100.0))
    (line,) = [line for line in chart.iter("line") if line.get("class") == "reference"]
    assert 0 <= float(line.get("y1", "nan")) <= 200


@given(st.lists(st.tuples(st.integers(0, 10**9), FINITE), min_size=1, max_size=20))
def test_no_finite_series_leaves_the_frame_or_draws_what_is_no_number(points: list[tuple[int, float]]) -> None:
    chart = draw(sorted(points))
    written = ElementTree.tostring(chart, encoding="unicode")
    assert "nan" not in written
    assert "inf" not in written
    for mark in chart.iter("circle"):
        assert 0 <= float(mark.get("cy", "nan")) <= 200
    for path in chart.iter("path"):
        assert all(-1 <= y <= 201 for y in numbers(path.get("d", ""))[1::2])


@given(FINITE, FINITE)
def test_ticks_lie_inside_their_range_and_are_evenly_spread(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-12)
    assert 1 <= len(ticks) <= 6
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert all(b > a for a, b in pairwise(ticks))


def test_ticks_are_round() -> None:
    assert nice_ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert nice_ticks(1.03, 2.61, most=5) == [1.5, 2.0, 2.5]
    assert nice_ticks(0, 2e-4, most=5) == [0, 5e-5, 1e-4, 1.5e-4, 2e-4]
    assert nice_ticks(3, 3) == [3]


def test_bars_are_as_long_as_their_bytes() -> None:
    chart = ElementTree.fromstring(memory_chart(memory(capacity=80 * GIB), ident="m", width=900))
    rects = {(r.findtext("title") or "").rsplit(" ", 2)[0]: float(r.get("width", "nan")) for r in chart.iter("rect")}
    per_gib = rects["forecast: weights"] / 10
    assert rects["measured: weights"] == pytest.approx(10 * per_gib, abs=0.2)
    assert rects["forecast: other"] == pytest.approx(7 * per_gib, abs=0.2)
    assert rects["measured: other"] == pytest.approx(6 * per_gib, abs=0.2)
    assert rects["forecast: context"] == pytest.approx(per_gib, abs=0.2)
    assert "measured: context" not in rects
    assert "rank 0: forecast 22.0 GiB, measured 20.0 GiB" in (chart.findtext("desc") or "")


def test_a_peak_without_parts_is_one_plain_bar() -> None:
    chart = ElementTree.fromstring(memory_chart(memory(capacity=80 * GIB, measured=None), ident="m", width=900))
    measured = [r for r in chart.iter("rect") if (r.findtext("title") or "").startswith("measured")]
    assert [r.get("class") for r in measured] == ["part peak"]


def test_a_capacity_far_beyond_the_bars_is_not_drawn() -> None:
    near, far = memory(capacity=80 * GIB), memory(capacity=20 * GIB * FARTHEST_CAPACITY + 1)
    assert capacity_in_sight(near)
    assert not capacity_in_sight(far)
    assert "capacity" in memory_chart(near, ident="m", width=900)
    assert "capacity" not in memory_chart(far, ident="m", width=900)


def test_thinning_keeps_the_ends_and_every_spike() -> None:
    points = [(step, 1.0) for step in range(10_000)]
    points[7777] = (7777, 50.0)
    points[3333] = (3333, -4.0)
    kept = thin(points)
    assert len(kept) <= 600
    assert {points[0], points[-1], (7777, 50.0), (3333, -4.0)} <= set(kept)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})


def test_the_running_mean_begins_at_the_first_value_and_stays_within_the_values() -> None:
    points = [(step, float(step % 7)) for step in range(200)]
    smoothed = smooth(points)
    assert smoothed[0] == points[0]
    assert all(0 <= value <= 6 for _, value in smoothed)
    assert smooth([(1, 3.0), (2, 3.0)]) == [(1, 3.0), (2, pytest.approx(3.0))]


def test_a_sparkline_falls_as_the_loss_falls() -> None:
    line = sparkline([10 - i for i in range(100)], width=10)
    assert len(line) == 10
    assert (line[0], line[-1]) == ("█", "▁")
    assert list(line) == sorted(line, reverse=True)
    assert sparkline([]) == ""
    assert sparkline([2.0]) == "▁"


def test_an_empty_range_is_drawn_in_the_middle() -> None:
    assert Scale(low=3, high=3, start=0, end=10)(3) == 5
