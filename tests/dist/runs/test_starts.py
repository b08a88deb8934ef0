"""A run that goes on under another layout, as a user does it: its report keeps the two apart."""

import json
import signal
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json, read_lines, read_metrics
from tests.dist.programs import end, start
from tests.unit.fakes import wait_until

STEPS = 40


def _train(job: Job, path: Path, *options: str) -> Any:
    path.write_text(json.dumps(job.to_json()))
    return start("-m", "shardwise", "train", path, *options)


@pytest.mark.slow
def test_a_run_that_comes_back_with_fewer_processes_is_planned_again_and_ends_equal(make_job, tmp_path) -> None:
    stated = {"train": {"max_steps": STEPS, "lr_scheduler_type": "constant", "warmup_steps": 0, "optimizer": "sgd"}}
    run, whole, path = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "whole"), tmp_path / "job.yaml"
    started = _train(make_job(output_dir=str(run.root), hardware="cpu:4", **stated), path)
    wait_until(lambda: len(read_metrics(run)) >= 2)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=100)
    stopped = len(read_metrics(run))
    fewer = make_job(output_dir=str(run.root), hardware="cpu:2", **stated)
    said = end(_train(fewer, path, "--no-replan"), code=2)
    came = f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2"
    assert f"error: {came}, and --no-replan is set" in said.replace(f"{path}: ", ""), said
    said = end(_train(fewer, path))
    assert f"{came}: it was planned again (ddp, dp_replicate=2) and goes on from checkpoint-{stopped}" in said, said
    assert [(line["first_step"], line["world_size"]) for line in read_lines(run.starts)] == [(1, 4), (stopped + 1, 2)]
    report: dict[str, Any] = read_json(run.report_json) or {}
    rows = {one["what"]: one for one in report["comparisons"]}
    own = [one["step_seconds"] for one in read_metrics(run)[stopped + 3 :]]
    assert rows["step time"]["note"] == f"median of steps {stopped + 4} to {STEPS} with these settings"
    assert rows["step time"]["measured"] == median(own)
    assert rows["weights"]["measured"] == rows["weights"]["forecast"]
    assert all(one["passed"] is not False for one in report["checks"]), report["checks"]
    end(_train(make_job(output_dir=str(whole.root), hardware="cpu:1", **stated), path))
    for name in ("loss", "grad_norm"):
        found, expected = ([record[name] for record in read_metrics(each)] for each in (run, whole))
        assert found == pytest.approx(expected, rel=1e-5), name
