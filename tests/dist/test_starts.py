"""A run that is stopped and gone on with under another layout, as a user does it: its report keeps the two apart."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json, read_lines, read_metrics
from tests.unit.fakes import wait_until

STEPS = 80


def _train(job: Job, path: Path, *options: str) -> subprocess.Popen[str]:
    path.write_text(json.dumps(job.to_json()))
    return subprocess.Popen(
        [sys.executable, "-m", "shardwise", "train", str(path), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_report_holds_a_layouts_own_steps_and_memory_beside_its_forecast(make_job, tmp_path) -> None:
    run, path = RunDirectory(tmp_path / "run"), tmp_path / "job.yaml"
    stated = {"output_dir": str(run.root), "hardware": "cpu:2", "train": {"max_steps": STEPS}}
    first = _train(make_job(layout="ddp", **stated), path)
    wait_until(lambda: len(read_metrics(run)) >= 5)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=100)
    stopped = len(read_metrics(run))
    assert 5 <= stopped < STEPS
    second = _train(make_job(layout={"tp": 2}, **stated), path)
    said, _ = second.communicate(timeout=200)
    assert second.returncode == 0, said
    ran = [(line["first_step"], line["execution"]["strategy"]) for line in read_lines(run.starts)]
    assert ran == [(1, "ddp"), (stopped + 1, "tp")]
    report: dict[str, Any] = read_json(run.report_json) or {}
    rows = {one["what"]: one for one in report["comparisons"]}
    own = [one["step_seconds"] for one in read_metrics(run)[stopped + 3 :]]
    assert rows["step time"]["measured"] == median(own)
    assert rows["step time"]["note"] == f"median of steps {stopped + 4} to {STEPS} with these settings"
    assert rows["weights"]["measured"] == rows["weights"]["forecast"]
    assert rows["total time"]["measured"] is None
    assert all(one["passed"] is not False for one in report["checks"]), report["checks"]


@pytest.mark.slow
def test_a_run_that_comes_back_with_fewer_processes_is_planned_again_and_ends_equal(make_job, tmp_path) -> None:
    stated = {"train": {"max_steps": 16, "lr_scheduler_type": "constant", "warmup_steps": 0, "optimizer": "sgd"}}
    run, whole, path = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole"), tmp_path / "job.yaml"
    first = _train(make_job(output_dir=str(run.root), hardware="cpu:4", **stated), path)
    wait_until(lambda: len(read_metrics(run)) >= 2)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=100)
    stopped = len(read_metrics(run))
    fewer = make_job(output_dir=str(run.root), hardware="cpu:2", **stated)
    refused = _train(fewer, path, "--no-replan")
    said, _ = refused.communicate(timeout=100)
    came = f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2"
    assert refused.returncode == 2
    assert f"error: {came}, and --no-replan is set" in said.replace(f"{path}: ", ""), said
    second = _train(fewer, path)
    said, _ = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert f"{came}: it was planned again (ddp, dp_replicate=2) and goes on from checkpoint-{stopped}" in said, said
    assert [line["world_size"] for line in read_lines(run.starts)] == [4, 2]
    alone = _train(make_job(output_dir=str(whole.root), hardware="cpu:1", **stated), path)
    alone.communicate(timeout=200)
    for name in ("loss", "grad_norm"):
        found, expected = ([record[name] for record in read_metrics(each)] for each in (run, whole))
        assert found == pytest.approx(expected, rel=1e-5), name
