"""What runs measured over their forecasts: a plan says it, and multiplies by it if asked to."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.api.plans.calibrated import note
from shardwise.catalog.calibration import MeasuredRun, RunKind, calibration_file, note_run, noted_runs
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.run import RunDirectory, write_json

_H100 = ["hardware=4x H100-SXM", "model=llama-3.1-8b", "method=lora"]
_HOSTILE = (b"", b"nonsense", b"[1, 2]", b'{"kind": {}, "memory": 1.0}', b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000)


def _like(made: Plan, strategy: str | None = None, **differs: Any) -> RunKind:
    execution = made.best.execution
    known: dict[str, Any] = {"device": Cluster.from_json(made.hardware).gpu.name, "probed": False, "method": "lora"}
    known |= {"strategy": strategy or execution.layout.strategy, "precision": execution.precision}
    known |= {"compile": execution.compile, "parameters": made.model["num_parameters"]}
    return RunKind(**(known | differs))


def _noted(kind: RunKind, *ratios: tuple[float | None, float | None]) -> None:
    for memory, seconds in ratios:
        note_run(MeasuredRun(kind=kind, memory=memory, seconds=seconds))


def test_a_plan_says_what_runs_like_it_measured_and_changes_nothing() -> None:
    before = api.plan(overrides=_H100)
    _noted(_like(before), (1.04, 1.5), (1.04, 1.12), (0.9, 0.8))
    made = api.plan(overrides=_H100)
    found = "3 runs like this measured 4 % more memory and 12 % more time than forecast"
    assert made.best.reasons == (*before.best.reasons, f"{found}; --calibrated multiplies by that")
    assert (made.best.memory, made.best.time) == (before.best.memory, before.best.time)
    assert made.candidates[1:] == before.candidates[1:]


def test_runs_of_another_kind_say_nothing() -> None:
    before = api.plan(overrides=_H100)
    texts = {"device": "A100-SXM-80GB", "strategy": "tp x pp", "method": "full", "precision": "fp32"}
    for differs in ({"probed": True}, *({key: value} for key, value in texts.items())):
        _noted(_like(before, **differs), (2.0, 2.0))
    for parameters in (10**9, 10**11, 0):
        _noted(_like(before, parameters=parameters), (2.0, 2.0))
    assert api.plan(overrides=_H100) == before


def test_calibrated_multiplies_memory_but_the_context_time_and_cost_and_says_so() -> None:
    before = api.plan(overrides=_H100)
    _noted(_like(before), (1.5, 2.0))
    made = api.plan(overrides=_H100, calibrated=True)
    one, other = before.best, made.best
    assert other.time.step_seconds == pytest.approx(2 * one.time.step_seconds)
    assert other.time.tokens_per_second == pytest.approx(one.time.tokens_per_second / 2)
    context = one.worst_rank.parts["context"]
    assert other.memory.peak_bytes - context == pytest.approx(1.5 * (one.memory.peak_bytes - context))
    assert other.memory.peak_high_bytes - context == pytest.approx(1.5 * (one.memory.peak_high_bytes - context))
    assert sum(other.worst_rank.parts.values()) == other.memory.peak_bytes
    assert other.worst_rank.parts["context"] == context
    said = "calibrated: 1 run like this measured 50 % more memory and 100 % more time than forecast; memory and time"
    assert other.reasons[-1].startswith(said)
    assert [c.execution for c in made.candidates] == [c.execution for c in before.candidates]


def test_what_no_longer_fits_gives_way_to_the_next() -> None:
    before = api.plan(overrides=_H100)
    _noted(_like(before), (50.0, None))
    made = api.plan(overrides=_H100, calibrated=True)
    gone = before.best.execution.layout.strategy
    assert made.best.execution == before.candidates[1].execution
    assert any(r.strategy == gone and r.reason.startswith("calibrated, it needs up to ") for r in made.rejected)
    assert any(reason.startswith(f"{gone}: calibrated, it needs up to ") for reason in made.best.reasons)
    for one in before.candidates:
        chosen: dict[str, Any] = {"precision": one.execution.precision, "compile": one.execution.compile}
        _noted(_like(before, one.execution.layout.strategy, **chosen), (50.0, None))
    nothing = api.plan(overrides=_H100, calibrated=True)
    assert nothing.best is None
    assert nothing.advice[0].startswith(f"{gone}: calibrated, it needs up to ")


def test_calibrated_without_such_runs_says_so_and_a_ratio_that_rounds_to_nothing_is_not_less() -> None:
    before, made = api.plan(overrides=_H100), api.plan(overrides=_H100, calibrated=True)
    assert made.best.reasons == (*before.best.reasons, "no run like this has been noted here: nothing is multiplied")
    assert made.best.memory == before.best.memory
    _noted(_like(before), (0.998, None))
    best = api.plan(overrides=_H100).best
    assert best.reasons[-1].startswith("1 run like this measured 0 % more memory than forecast; ")


def _line(kind: RunKind, memory: object, seconds: object = None) -> bytes:
    return json.dumps({"kind": asdict(kind), "memory": memory, "seconds": seconds}).encode()


def test_a_damaged_or_hostile_file_is_a_sentence_and_what_can_be_read_of_it_counts() -> None:
    kind = _like(api.plan(overrides=_H100))
    ratios = (float("nan"), float("inf"), -1, 0, 1e300, "1.0", True, None, [1.0], 10**400)
    lines = [*_HOSTILE, *(_line(kind, ratio) for ratio in ratios), _line(kind, 1.25)]
    calibration_file().parent.mkdir()
    calibration_file().write_bytes(b"\n".join(lines) + b"\n")
    found = api.plan(overrides=_H100).best
    said = f"{len(lines) - 1} of {len(lines)} lines of {calibration_file()} are no runs and left out; remove the file"
    assert found.reasons[-2] == said
    assert found.reasons[-1].startswith("1 run like this measured 25 % more memory than forecast; ")


def test_a_folder_in_its_place_is_a_sentence_and_no_run_fails_of_it(tmp_path: Path) -> None:
    calibration_file().mkdir(parents=True)
    best = api.plan(overrides=_H100).best
    assert best.reasons[-1].endswith("is no file, so that what earlier runs measured is not known; remove it")
    run = _finished(tmp_path)
    note(run, api.report(run.root))


def test_of_a_long_file_the_end_is_read() -> None:
    kind = _like(api.plan(overrides=_H100))
    calibration_file().parent.mkdir()
    calibration_file().write_bytes((_line(kind, 9.0) + b"\n") * 3000 + (_line(kind, 1.1) + b"\n") * 2000)
    runs, wrong = noted_runs()
    assert wrong is None
    assert {run.memory for run in runs} == {1.1}
    assert 100 < len(runs) < 1000


def _finished(folder: Path) -> RunDirectory:
    """A run whose steps took twice as long as forecast, and whose peak was half of the forecast."""
    run = RunDirectory(folder / "run")
    run.root.mkdir()
    made = api.plan(overrides=_H100)
    write_json(run.plan, made.to_json())
    records = [{"step": step, "loss": 1.0, "step_seconds": 2 * made.best.time.step_seconds} for step in range(1, 9)]
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    rank = made.best.worst_rank
    peak = (rank.peak_bytes - rank.parts["context"]) // 2
    write_json(run.measured, {"kind": "cuda_allocated", "ranks": [{"rank": rank.ranks[0], "peak_memory_bytes": peak}]})
    return run


def test_a_finished_run_is_noted_by_what_its_report_measured(tmp_path: Path) -> None:
    run = _finished(tmp_path)
    note(run, api.report(run.root))
    ((only,), wrong) = noted_runs()
    assert wrong is None
    assert (only.memory, only.seconds) == (pytest.approx(0.5, rel=1e-3), pytest.approx(2.0, rel=1e-3))
    made = api.plan(overrides=_H100)
    assert made.best.reasons[-1].startswith("1 run like this measured 50 % less memory and 100 % more time than")
    write_json(run.plan, {"not": "a plan"})
    note(run, api.report(run.root))
    assert len(noted_runs()[0]) == 1, "of a run without a plan nothing is noted"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--rehearse",), "--rehearse and --calibrated exclude each other; keep one, then ask for the other"),
        (("--solve", "max_length"), "--solve and --calibrated exclude each other; keep one"),
        (("--hardware", "1x L4, 2x L4"), "--calibrated is for one hardware; name it, or leave it out for this machine"),
    ],
)
def test_what_is_not_multiplied_is_refused(options: tuple[str, ...], sentence: str, shardwise) -> None:
    assert sentence in " ".join(shardwise.refused("plan", "--model", "llama-3.1-8b", "--calibrated", *options).split())
