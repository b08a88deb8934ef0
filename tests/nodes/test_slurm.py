"""The script of docs/howto/nodes.md on a real Slurm: it trains, is pre-empted, requeued, and goes on."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from shardwise import api
from shardwise.spec.run import RunDirectory, read_metrics
from tests.nodes import slurm as installed
from tests.nodes.conftest import Cluster, verdict
from tests.nodes.slurm import slurm
from tests.nodes.test_nodes import assert_equal

pytestmark = pytest.mark.skipif(installed.lacking() is not None, reason=str(installed.lacking()))

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "nodes.md"


def script(folder: Path, job: Path) -> Path:
    """The page's script, on processors and with this interpreter's program."""
    found = re.search(r'```sh title="job.sbatch"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = f"{shlex.quote(sys.executable)} -m shardwise.cli.main"
    text = found[1]
    for written, here in (
        (" --gpus-per-node=8", ""),
        ("/shared/cache", str(folder / "cache")),
        ("exec shardwise", f"exec {program}"),
        ("job.yaml", str(job)),
    ):
        assert written in text, written
        text = text.replace(written, here)
    path = folder / "job.sbatch"
    path.write_text(text)
    return path


def wait_until(job: str, cluster, condition, *, seconds: float = 300.0) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    while not condition(state := cluster.state(job)):
        assert time.monotonic() < deadline, (state, cluster.ask("cat", state["StdOut"]))
        time.sleep(0.5)
    return state


def test_a_job_that_is_preempted_saves_is_requeued_and_ends_equal(two: Cluster, job_file, tmp_path: Path) -> None:
    train = {"max_steps": 24, "optimizer": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0}
    path, run = job_file(train=train, layout="fsdp", hardware="cpu:2")
    whole, alone = job_file("alone", train=train, hardware="cpu:1")
    with slurm(two.nodes, folder=tmp_path / "slurm") as cluster:
        job = cluster.ask("sbatch", "--parsable", "--chdir", str(tmp_path), str(script(tmp_path, path))).strip()
        wait_until(job, cluster, lambda state: len(read_metrics(run)) >= 3)
        began = time.monotonic()
        cluster.ask("scancel", "--signal=TERM", job)
        state = wait_until(job, cluster, lambda state: state["Restarts"] == "1")
        verdict("Slurm: SIGTERM, until the job was saved and requeued", began)
        (step, folder), *_ = run.checkpoints()
        assert 3 <= step < train["max_steps"]
        wait_until(job, cluster, lambda state: state["JobState"] == "PENDING")
        cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # not two minutes later
        state = wait_until(job, cluster, lambda state: state["JobState"] in ("COMPLETED", "FAILED"))
        said = Path(state["StdOut"]).read_text()
    assert state["JobState"] == "COMPLETED", said
    assert f"stopped after step {step} by SIGTERM; the same command goes on from {folder}" in said
    assert f"first step {step + 1}" in said
    api.train(whole)
    assert_equal(run, RunDirectory(alone.root))
