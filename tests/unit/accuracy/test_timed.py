"""Step times after a probe, and steps of other trainers: forecasts beside what was measured."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from accuracy.grid import stacks
from accuracy.grid.elsewhere import FOLDER, RATES, TIMES, elsewhere
from accuracy.grid.stacks import TOYS, forecast_of
from accuracy.grid.timed import JOBS, LAYOUTS, Timed, regret, summary, timed
from accuracy.grid.zero import BUCKET
from shardwise.catalog.calibration import known_stacks
from shardwise.catalog.rates import VERSION

BY_SIZE, BY_FLOPS = {"64": 0.3e-3, "16777216": 12e-3}, {"1000000": 1e-4, "1000000000": 0.03}
TYPES = ("float32", "bfloat16", "float16")
PROBED = {"version": VERSION, "processor": "any", "cores": 2, "gpu": "", "ranks": 2, "operator_seconds": 4e-6}
PROBED |= {"memory_bytes_per_second": 2e10, "disk_bytes_per_second": 1e9, "host_to_device_bytes_per_second": 0.0}
PROBED |= {"product_flops": {kind: {"1024x1024x1024": 1e11} for kind in TYPES}}
PROBED |= {"attention_seconds": {kind: {"forward": BY_FLOPS, "backward": BY_FLOPS} for kind in TYPES}}
PROBED |= {"message_seconds": dict.fromkeys(("all_reduce", "gather", "scatter", "message"), BY_SIZE)}
ROWS = list(csv.DictReader((Path(stacks.__file__).parent / "stacks.csv").read_text().splitlines()))


@pytest.fixture
def measured(tmp_path):
    """Files as `python -m accuracy.grid.timing` leaves them."""
    times, rates = tmp_path / "times.csv", tmp_path / "rates.json"
    rates.write_text(json.dumps(PROBED))
    with times.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job", "layout", "round", "step_seconds", "fastest_step"])
        writer.writerows([JOBS[0].words, layout, at, 0.5 + at, 0.5] for at in (0, 1, 2) for layout in LAYOUTS)
    return tmp_path


@pytest.fixture
def cells(measured):
    return timed(measured / "times.csv", measured / "rates.json")


def test_every_layout_is_forecast_and_the_chosen_one_takes_hardly_longer(cells) -> None:
    seconds = {cell.layout: cell.forecast for cell in cells}
    assert seconds.keys() == {*LAYOUTS}
    assert seconds["ddp-2"] < seconds["zero2-2"] < seconds["fsdp-2"], "what is sent more often"
    assert seconds["single-1"] < seconds["mp-2"], "which has one core at work at a time"
    assert {(cell.measured, cell.fastest) for cell in cells} == {(1.5, 0.5)}
    assert "within 5 % of it in 1 of 1 jobs" in summary(cells)
    names = (("ddp-2", 1.2, 0.8), ("fsdp-2", 1.0, 0.9))
    made = [Timed(job="any", layout=name, measured=m, fastest=m, forecast=f) for name, m, f in names]
    assert regret(made) == pytest.approx(0.2)


def test_the_page_has_the_times_where_both_files_are_there(measured, cells):
    said = elsewhere(measured)
    assert f"error of {len(LAYOUTS)} steps is" in said
    ddp = next(cell for cell in cells if cell.layout == "ddp-2")
    assert f"| ddp-2 | 1 | {ddp.error:+.1%} | {abs(ddp.error):.1%} | {ddp.error:+.1%} |" in said
    for name in ("times", "rates"):
        first = next(measured.glob(f"{name}.*"))
        (measured / f"{name}-quiet{first.suffix}").write_text(first.read_text())
    assert "earlier round" in elsewhere(measured)
    assert "The same steps took 0.0% more or less" in elsewhere(measured)
    assert "earlier round" not in said
    (measured / "rates.json").unlink()
    assert elsewhere(measured) == ""


def test_half_the_measured_steps_are_forecast_within_ten_percent_after_a_probe():
    by_job: dict[str, list[Timed]] = {}
    for cell in timed(FOLDER / TIMES, FOLDER / RATES):
        by_job.setdefault(cell.job, []).append(cell)
    assert by_job.keys() == {job.words for job in JOBS}
    assert median(abs(cell.error) for cells in by_job.values() for cell in cells) < 0.1
    assert max(regret(cells) for cells in by_job.values()) < 0.1


@pytest.mark.parametrize(("target", "layout"), [(name, way) for name, ways in stacks.LAYOUTS.items() for way in ways])
def test_deepspeeds_own_steps_are_forecast(target: str, layout: str) -> None:
    """Every toy, within what its plain loop is, whose activations are the same."""
    stack = replace(known_stacks()[target], bucket=BUCKET)
    rows = [row for row in ROWS if (row["target"], row["layout"]) == (target, layout)]
    assert len(rows) == len(TOYS)
    for toy, row in zip(TOYS, rows, strict=True):
        forecast, ours = forecast_of(toy, stack, layout)
        assert (forecast, ours) == (int(row["forecast"]), int(row["ours"])), toy
        assert 0.85 < forecast / int(row["measured"]) < 1.08, toy
