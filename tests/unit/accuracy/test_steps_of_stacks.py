"""Steps of other trainers that were measured on toys are forecast: `accuracy/grid/stacks.csv`."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from accuracy.grid import stacks
from accuracy.grid.stacks import LAYOUTS, TOYS, forecast_of
from accuracy.grid.zero import BUCKET
from shardwise.catalog.stacks import known_stacks

ROWS = list(csv.DictReader((Path(stacks.__file__).parent / "stacks.csv").read_text().splitlines()))


@pytest.mark.parametrize(("target", "layout"), [(name, way) for name, ways in LAYOUTS.items() for way in ways])
def test_deepspeeds_own_steps_are_forecast(target: str, layout: str) -> None:
    """Every toy, within what its plain loop is, whose activations are the same."""
    stack = replace(known_stacks()[target], bucket=BUCKET)
    rows = [row for row in ROWS if (row["target"], row["layout"]) == (target, layout)]
    assert len(rows) == len(TOYS)
    for toy, row in zip(TOYS, rows, strict=True):
        forecast, ours = forecast_of(toy, stack, layout)
        assert (forecast, ours) == (int(row["forecast"]), int(row["ours"])), toy
        assert 0.85 < forecast / int(row["measured"]) < 1.08, toy
