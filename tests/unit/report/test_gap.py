"""A report's memory by phase, the rows that were seen, and gaps worth a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwise.report.collect import collect
from shardwise.report.contents import Report
from shardwise.report.pages.run_page import report_html
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import SeenMemory
from shardwise.spec.run import RunDirectory, read_json, write_json
from tests.unit.report.runs import GIB, finished_run

PHASES = {"forward_backward": 16 * GIB, "optimizer_step": 15 * GIB}


def seen(size: int, *, later: int = 0) -> SeenMemory:
    phases = {"forward_backward": size, "optimizer_step": 15 * GIB, "saving": 14 * GIB}
    return SeenMemory(first=512, later=later, peaks=dict.fromkeys((0, 1), size), phases=dict.fromkeys((0, 1), phases))


def reported(root: Path, size: int, *, of: SeenMemory | None, compiled: bool = False) -> Report:
    """A run with a forecast peak of 21 GiB; weights and optimizer states measured 14."""
    run = finished_run(root / "run")
    measured = read_json(run.measured) or {}
    parts = {"weights": 10 * GIB, "optimizer": 4 * GIB, "other": size - 14 * GIB}
    measured["ranks"] = [{"rank": n, "peak_memory_bytes": size, **parts, "phases": PHASES} for n in range(2)]
    write_json(run.measured, measured)
    if compiled:
        plan = read_plan(run.plan)
        execution = replace(plan.candidates[0].execution, compile=True)
        write_json(run.plan, replace(plan, candidates=(replace(plan.candidates[0], execution=execution),)).to_json())
    return collect(run, seen=of)


def test_phases_and_the_rows_that_were_seen_stand_beside_the_peak(tmp_path) -> None:
    report = reported(tmp_path, 16 * GIB, of=seen(int(16.5 * GIB)))
    rows = {one.what: one for one in report.comparisons}
    expected: dict[str, Any] = {"peak memory": (21, 16, 31.25), "in the optimizer step": (15, 15, 0)}
    expected |= dict.fromkeys(("peak of rows seen", "in forward and backward"), (16.5, 16, 3.125))
    for what, (forecast, measured, error) in expected.items():
        found = (rows[what].forecast, rows[what].measured, rows[what].error_percent)
        assert found == pytest.approx((forecast * GIB, measured * GIB, error)), what
    assert rows["peak of rows seen"].note == "for rows of 512 tokens, the longest while it was measured"
    assert "in saving" not in rows, "it was not measured"
    assert [rank.measured_phases for rank in report.memory.ranks] == [PHASES, PHASES]
    assert report.memory.ranks[1].forecast_seen_bytes == int(16.5 * GIB)
    ratios = {"peak": 1.3125, "peak_seen": 1.0312, "weights": 1.0, "optimizer": 1.0, "other": 3.5}
    assert report.memory.ranks[1].ratios == ratios | {"forward_backward": 1.0312, "optimizer_step": 1.0}
    off = "the forecast peak is +31.2 % off: for rows of 512 tokens, the longest while it was measured"
    said = f"{off}, 16.5 GiB are forecast (+3.1 %)"
    assert said in report.notes
    assert said[1:] in report_html(report)


def test_what_rows_do_not_explain_is_placed(tmp_path) -> None:
    assert reported(tmp_path, 16 * GIB, of=seen(14 * GIB, later=96), compiled=True).notes[-1] == (
        "the forecast peak is +31.2 % off: for rows of 512 tokens in the first forward of a step and 96 in later "
        "ones, the longest while it was measured, 14.0 GiB are forecast (-12.5 %); 2.00 GiB more were measured, in "
        "what comes and goes in a step; blocks are compiled, and what a compiler keeps is not counted operator by "
        "operator"
    )


def test_what_gloo_lets_go_of_unseen_is_named_on_cpu_processes(tmp_path) -> None:
    said = "; a tensor that gloo's thread is the last to let go of is not seen to be freed: on a busy machine more is "
    said += "measured than was held"
    for kind, size, named in (("cpu", 23, True), ("cpu", 16, False), ("cuda", 23, False)):
        run = RunDirectory(tmp_path / f"{kind}-{size}" / "run")
        reported(run.root.parent, size * GIB, of=None)
        how = {"cpu": "cpu_allocation_events", "cuda": "cuda_allocated"}[kind]
        write_json(run.measured, {**(read_json(run.measured) or {}), "kind": how})
        assert collect(run).notes[-1].endswith(said) is named


def test_a_gap_of_five_percent_or_an_unknown_one_needs_no_sentence(tmp_path) -> None:
    for number, (size, of) in enumerate([(20 * GIB, None), (21 * GIB, seen(21 * GIB))]):
        notes = reported(tmp_path / str(number), size, of=of).notes
        assert not [note for note in notes if note.startswith("the forecast peak")]
