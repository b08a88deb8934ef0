"""torchrun's group: what it leaves, how it ends; and a run that goes on under another layout."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_json, read_lines, read_metrics
from tests.dist.programs import TORCHRUN, end, start
from tests.unit.fakes import processes_of, wait_until


@pytest.fixture
def torchrun(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Any]:
    """Starts a job of few steps, as a user does it, with a free port."""

    def begin(**train: object) -> Any:
        job = make_job(output_dir=str(tmp_path / "run"), train={"max_steps": 4, "logging_steps": 2, **train})
        (tmp_path / "job.yaml").write_text(json.dumps(job.to_json()))
        return start(*TORCHRUN, "-m", "shardwise.cli.main", "train", tmp_path / "job.yaml")

    return begin


@pytest.mark.slow
def test_a_group_of_torchrun_leaves_the_same_folder_and_the_same_last_lines(torchrun, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    said = end(torchrun())
    assert [record["step"] for record in read_metrics(run)] == [1, 2, 3, 4]
    report = json.loads(run.report_json.read_text())
    assert report["outcome"]["state"] == "finished", report["outcome"]
    assert run.report_html.stat().st_size > 10_000
    assert run.rank_log(0).is_file() and run.rank_log(1).is_file()
    assert said.count("finished after 4 steps") == 1
    assert said.count(f"report   {run.report_html}") == 1
    assert "step 2/4  loss" in said
    assert processes_of(run) == []


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("asked", [True, False], ids=["asked to stop", "a rank is killed"])
def test_a_group_of_torchrun_saves_and_goes_on_later_or_names_one_cause(asked, torchrun, tmp_path) -> None:
    run, started = RunDirectory(tmp_path / "run"), torchrun(max_steps=4000)
    wait_until(lambda: bool(read_metrics(run)))
    if asked:
        started.send_signal(signal.SIGTERM)
    else:
        os.kill(int(run.rank_pid(1).read_text()), signal.SIGKILL)
    said, _ = started.communicate(timeout=100)
    assert started.returncode != 0
    assert processes_of(run) == []
    if asked:
        (step, folder), *_ = run.checkpoints()
        assert f"stopped after step {step} by SIGTERM; the same command goes on from {folder}" in said
        assert read_metrics(run)[-1]["step"] == step
    else:
        assert said.count("error: ") == 1, said
        assert "error: rank 0 failed while training" in said


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
