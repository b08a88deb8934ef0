"""Charts are drawn to scale, and curves keep their ends and spikes."""

from typing import Any

import pytest

from shardwise.report.collect import thin
from shardwise.report.contents import MemoryReport, RankReport
from shardwise.report.pages.run_page import memory_by_rank
from tests.unit.report.runs import FORECAST_PARTS, GIB, MEASURED_PARTS


def memory(*, capacity: int) -> MemoryReport:
    parts: dict[str, Any] = {"forecast_parts": FORECAST_PARTS, "measured_parts": MEASURED_PARTS}
    rank = RankReport(rank=0, **parts, forecast_peak_bytes=21 * GIB, measured_peak_bytes=20 * GIB)
    unknown: dict[str, Any] = dict.fromkeys(("kind", "peak_low_bytes", "peak_high_bytes", "peak_instant"))
    return MemoryReport(**unknown, capacity_bytes=capacity, worst_rank=0, ranks=(rank,))


def test_bars_are_as_long_as_their_bytes() -> None:
    chart = memory_by_rank(memory(capacity=80 * GIB))
    forecast, measured = chart.bars
    widths = {part.look: part.width for part in forecast.segments}
    per_gib = 100 / 80
    assert widths == {
        "part weights": pytest.approx(10 * per_gib),
        "part optimizer": pytest.approx(4 * per_gib),
        "part other": pytest.approx(7 * per_gib),
        "part context": pytest.approx(per_gib),
    }
    assert sum(part.width for part in measured.segments) == pytest.approx(20 * per_gib)
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
