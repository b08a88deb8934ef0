"""A group that torchrun started: what it leaves, how it stops, what it says of failure."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_metrics
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
