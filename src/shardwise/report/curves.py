"""Metrics over the steps of a run: downsampled for drawing, and their running mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from shardwise.report.fields import as_number
from shardwise.report.nouns import Curve

MAX_POINTS = 600

Point = tuple[int, float]


def curve(records: Sequence[dict[str, Any]], key: str) -> Curve:
    """The metric `key` of those records that have it as a finite number."""
    points = _points(records, key)
    return Curve(name=key, points=thin(points), num_recorded=len(points))


def smoothed_curve(records: Sequence[dict[str, Any]], key: str) -> Curve:
    """The running mean of a metric over a fiftieth of the run, computed before downsampling."""
    points = _points(records, key)
    return Curve(name=f"{key}_smoothed", points=thin(smooth(points)), num_recorded=len(points))


def _points(records: Sequence[dict[str, Any]], key: str) -> list[Point]:
    return [(record["step"], value) for record in records if (value := as_number(record.get(key))) is not None]


def thin(points: Sequence[Point], *, limit: int = MAX_POINTS) -> tuple[Point, ...]:
    """At most `limit` points: first, last, and the lowest and highest of equal spans, so that spikes are kept."""
    if len(points) <= limit:
        return tuple(points)
    inner = points[1:-1]
    num_spans = (limit - 2) // 2
    bounds = [len(inner) * i // num_spans for i in range(num_spans + 1)]
    kept: list[Point] = [points[0]]
    for start, end in pairwise(bounds):
        span = inner[start:end]
        extremes = {min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])}
        kept.extend(sorted(extremes))
    return (*kept, points[-1])


def smooth(points: Sequence[Point]) -> list[Point]:
    """Exponential running mean over a fiftieth of the series, at least 5 points, with Adam's bias correction."""
    decay = 1 - 2 / (max(5, len(points) / 50) + 1)
    result: list[Point] = []
    mean, weight = 0.0, 0.0
    for step, value in points:
        mean = decay * mean + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        result.append((step, mean / weight))
    return result
