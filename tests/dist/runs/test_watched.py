"""A training that is watched in a browser from start to end, in windows of three widths."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.run import RunDirectory, read_json, read_lines, read_metrics
from shardwise.units import format_bytes
from tests.dist.programs import end, start
from tests.unit.web.browser import WIDTHS, Tab, browser  # noqa: F401  (a fixture)
from tests.unit.web.served import serving

STEPS = 300
#: What a watcher sees, in one look.
LOOK = """(() => {
  const text = (where) => (document.querySelector(where) || { textContent: "" }).textContent;
  const cards = Object.fromEntries([...document.querySelectorAll(".card")].map((card) =>
    [card.querySelector(".label").textContent, card.querySelector(".value").textContent]));
  const bars = [...document.querySelectorAll("svg.bar[aria-label^=rank]")].map((bar) => bar.getAttribute("aria-label"));
  const events = [...document.querySelectorAll("#events li")].map((one) => one.lastChild.textContent.trim());
  return { outcome: text("#report .outcome"), live: text(".live"), cards, bars, events: events.reverse() };
})()"""


@pytest.mark.slow
def test_a_training_is_watched_from_before_its_start_to_its_end(browser: Any, make_job: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "served"
    folder.mkdir()
    run, file = RunDirectory(folder / "runs/toy"), tmp_path / "job.json"
    settings = {"train": {"max_steps": STEPS}, "hardware": "cpu:2", "layout": "ddp", "output_dir": str(run.root)}
    file.write_text(json.dumps(make_job(**settings).to_json()))
    with serving(folder) as found:
        tabs = [Tab(browser, found.url, width=width) for width in WIDTHS]
        for tab in tabs:
            tab.open("/runs")
            assert "No run directory lies below this folder" in tab.page.inner_text("#runs")
        training = start("-m", "shardwise", "train", file)
        try:
            seen = watch(tabs, run)
            end(training)
        finally:
            training.kill()
        for looks in seen:
            assert_followed(looks, run)
        for tab in tabs:
            tab.page.wait_for_selector(".live:not([data-poll])")
            assert tab.page.locator(".plot canvas").count() == 4
            assert tab.page.evaluate("performance.getEntriesByType('navigation').length") == 1
            assert tab.page.evaluate("window.watched"), "no page was loaded again"
            assert tab.page.evaluate("document.querySelector('#report details').open"), "what was opened stays open"
            tab.assert_calm()
            tab.page.close()


def watch(tabs: list[Tab], run: RunDirectory) -> list[list[dict[str, Any]]]:
    """What each window shows of the run, from its first step until it has finished."""
    for tab in tabs:
        tab.until("document.querySelector('#runs .badge.running') !== null", seconds=60)
        tab.page.click("a:text('runs/toy')")
        tab.page.wait_for_selector("html.scripted")
        tab.page.evaluate("window.watched = true")
    for tab in tabs:
        tab.until("document.querySelector('#report .card .value') !== null", seconds=90)
        tab.page.click("#report details summary")
    seen: list[list[dict[str, Any]]] = [[] for _ in tabs]
    until = time.monotonic() + 120
    while any(not looks or "Finished" not in looks[-1]["outcome"] for looks in seen):
        assert time.monotonic() < until, (seen[0][-1], read_lines(run.events)[-3:])
        for tab, looks in zip(tabs, seen, strict=True):
            look = tab.page.evaluate(LOOK)
            if not looks or look != looks[-1]:
                looks.append(look)
        time.sleep(0.2)
    return seen


def assert_followed(looks: list[dict[str, Any]], run: RunDirectory) -> None:
    """Every look says what the run had written, and the last one how it ended."""
    metrics, report = read_metrics(run), read_json(run.report_json) or {}
    losses = [f"{line['loss']:.4g}" for line in metrics]
    running = [one for one in looks if "Running" in one["outcome"] and "step 0" not in one["outcome"]]
    told = {int(re.findall(r"step (\d+)", one["outcome"])[0]): one["cards"]["loss"] for one in running}
    assert len(told) >= 2, "it is told while it runs"
    assert list(told) == sorted(told)
    assert told == {step: losses[step - 1] for step in told}
    for one in running:
        assert one["live"].startswith("Followed while it runs; at ")
    trained, last = running[-1], looks[-1]
    assert trained["cards"]["throughput"].endswith(" tokens/s")
    forecast = format_bytes(report["memory"]["ranks"][0]["forecast_peak_bytes"])
    for rank in range(2):
        assert f"rank {rank} forecast: {forecast}" in trained["bars"]
        assert any(bar.startswith(f"rank {rank} measured: ") for bar in trained["bars"])
    phases = [line["phase"] for line in read_lines(run.events)]
    assert [event.partition(",")[0] for event in trained["events"]][:2] == phases[:2], "events come as they are written"
    assert f"Finished at step {STEPS} of {STEPS}. Last written " in last["outcome"]
    assert last["live"].startswith("Ended; at ")
    assert last["cards"]["loss"] == losses[-1]
    assert [event.partition(",")[0] for event in last["events"]] == phases
