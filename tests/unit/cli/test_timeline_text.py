"""The timeline on a terminal: a line for each GPU, letters where the time goes."""

import html
import json
from pathlib import Path

import pytest

from shardwise.cli.timeline_text import heading, legend, timeline_lines
from shardwise.spec.plan.timeline import Kind, Lane, Stream, Timeline, TimelineSpan
from tests.unit.cli.conftest import Shardwise


def span(rank: int, kind: Kind, start: float, end: float, stream: Stream = "compute") -> TimelineSpan:
    return TimelineSpan(rank=rank, stream=stream, kind=kind, name=kind, start=start, end=end)


def staircase() -> Timeline:
    spans = (
        span(0, "forward", 0, 10),
        span(1, "forward", 10, 20),
        span(1, "backward", 20, 30),
        span(0, "backward", 30, 40),
    )
    lanes = (Lane(ranks=(0,), computing=0.5), Lane(ranks=(1, 2), computing=0.75))
    return Timeline(strategy="mp", seconds=40, micro_batches=3, drawn_micro_batches=1, lanes=lanes, spans=spans)


def test_model_parallel_is_seen_as_a_staircase() -> None:
    lines = [line.plain for line in timeline_lines(staircase(), width=53)]
    assert lines == [
        "GPU 0   " + "F" * 10 + "." * 19 + "B" * 10 + "  50 %",
        "GPU 1-2 " + "." * 10 + "F" * 10 + "B" * 9 + "." * 10 + "  75 %",
    ]
    assert heading(staircase()) == "one step of mp, 1 of its 3 micro-batches: 40 s from left to right"
    assert legend(staircase()).startswith("F forward  B backward  . waits for others")


def test_the_shares_beside_a_part_of_a_step_are_those_of_the_whole(shardwise: Shardwise, tmp_path: Path) -> None:
    """A pipeline of 64 micro-batches waits far less than 8 of them would."""
    asked = ("plan", "--model", "tinyllama-1.1b", "--method", "lora", "--hardware", "4x RTX-6000-Ada")
    sets = ("layout={pp: 4, schedule: gpipe}", "train.global_batch_size=64", "train.micro_batch_size=1")
    asked = (*asked, *(word for one in sets for word in ("--set", one)))
    page = tmp_path / "plan.html"
    assert "one step of" not in shardwise(*asked, "--html", page).out
    said = shardwise(*asked, "--timeline").out
    assert "one step of pp, 8 of its 64 micro-batches: " in said
    assert "%: share of the whole step in which it computes" in " ".join(said.split())
    shares = [float(line.split()[-2]) for line in said.splitlines() if line.startswith("GPU ") and line.endswith(" %")]
    whole = json.loads(shardwise(*asked, "--json").out)["candidates"][0]["time"]["compute_utilization"]
    assert len(shares) == 4
    assert sum(shares) / 4 == pytest.approx(100 * whole, abs=0.5)
    source = page.read_text()
    assert "<h1>pp fits on 4x RTX-6000-Ada</h1>" in source
    assert "8 of the step's 64 micro-batches as forecast" in html.unescape(source)
    assert f">{shares[0]:.0f} % of the step<" in source
    refused = shardwise(*asked, "--html", page / "plan.html")
    assert refused.code == 2
    assert "cannot be written" in refused.err
