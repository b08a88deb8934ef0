"""A run that hangs ends, whoever hangs and wherever, and says which rank the others waited for."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_metrics
from tests.dist import programs
from tests.dist.conftest import THEN_WORKS
from tests.unit.fakes import processes_of, wait_until

pytestmark = pytest.mark.slow

#: The beginning of each worker.
HEAD = """
import os, signal, sys, time
import torch.distributed as dist
"""

#: One whose rank 1 comes to grief in its third step, or before it. The first batch is looked at
#: before the training, and every other is made while the device works on the one before.
STUCK = """
from shardwise.data.micro_batches import Batcher
from shardwise.train import optim

split, reduce, taken = Batcher.split, dist.all_reduce, []

def stuck(batcher, *args, **kwargs):
    taken.append(None)
    if len(taken) == {taken}:
        {how}
    return split(batcher, *args, **kwargs)

if os.environ["RANK"] == "1":
    Batcher.split = stuck
"""

#: One that evaluates a batch in two seconds.
EVALUATES = """
from shardwise.train import step

evaluate = step.GradientAccumulator.evaluate
step.GradientAccumulator.evaluate = lambda *args, **kwargs: time.sleep({how}) or evaluate(*args, **kwargs)
"""

#: One whose last rank never comes to the end of its teardown.
LINGERS = """
from shardwise.train import worker

worker.TEARDOWN_SECONDS = {how}
if os.environ["RANK"] == "1":
    dist.destroy_process_group = lambda: time.sleep(600)
"""

#: What rank 1 does; a collective that it skips, or a process that is stopped.
SLEEPS = "time.sleep(600)"
SKIPS = "optim.dist = type('Skipping', (), {'is_initialized': lambda: True, 'all_reduce': lambda *_: None})"
FREEZES = "os.kill(os.getpid(), signal.SIGSTOP)"

TRAIN = """
import sys
from shardwise.api.runs.training import train
from shardwise.errors import ShardwiseError
from shardwise.launch.processes import command
command.WORKER = "stuck"
try:
    train(sys.argv[1])
except ShardwiseError as error:
    sys.exit(f"{error}\\nexit {error.exit_code}")
"""


@pytest.fixture
def start(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Any]:
    """Starts a training by fsdp on two ranks, one of which will be stuck."""

    def begin(how: str, *, worker=STUCK, taken=5, seconds=None, torchrun=False, **keys: Any) -> Any:
        (tmp_path / "stuck.py").write_text(HEAD + worker.format(how=how, taken=taken) + THEN_WORKS)
        (tmp_path / "train.py").write_text(TRAIN)
        keys = {"train": {"max_steps": 40, "save_steps": 1}, **keys}
        job = make_job(output_dir=str(tmp_path / "run"), hardware="cpu:2", layout="fsdp", **keys)
        (tmp_path / "job.yaml").write_text(json.dumps(job.to_json()))
        path = os.pathsep.join([str(tmp_path), *sys.path])
        stated: dict[str, Any] = {} if seconds is None else {"SHARDWISE_STALL_SECONDS": str(seconds)}
        words = (*(programs.TORCHRUN if torchrun else ()), tmp_path / "train.py", tmp_path / "job.yaml")
        return programs.start(*words, PYTHONPATH=path, **stated)

    return begin


def test_a_teardown_that_hangs_does_not_keep_a_run_that_is_complete(start, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    started = start("2.0", worker=LINGERS, train={"max_steps": 2})
    _said_at_its_end(started)
    assert started.returncode == 0
    assert (run.final / "manifest.json").is_file()
    said = "process groups were not destroyed within 2 s; the run is complete"
    assert [said in run.rank_log(rank).read_text() for rank in (0, 1)] == [False, True]


def _said_at_its_end(started: Any) -> str:
    began = time.monotonic()
    said, _ = started.communicate(timeout=60)
    assert time.monotonic() - began < 45, "some 15 s where nothing else runs; what is told from it are minutes"
    return said


def _wait_until_stuck(run: RunDirectory) -> None:
    saved = run.checkpoint(1) / "manifest.json"
    wait_until(lambda: len(read_metrics(run)) == 2 and saved.is_file(), seconds=120)


@pytest.mark.parametrize(
    ("how", "rank", "during", "words"),
    [
        (SLEEPS, 1, "step 3", "rank 1 is in from_ (micro_batches.py:…; rank 0 waits in … of ranks 0-1 has not ended"),
        (SKIPS, 0, "step 3", "rank 0 waits in norm_of (optim.py:…; rank 1 waits in pulse (metrics.py:"),
        (FREEZES, 1, "after step 3", "rank 1 does not answer, its process is stopped or hangs outside Python; rank 0 "),
    ],
    ids=["sleeps", "skips a collective", "frozen"],
)
def test_a_rank_that_the_others_wait_for_is_named_and_all_end(how, rank, during, words, start, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    started = start(how, taken=4 if how == SKIPS else 5, seconds=6)
    _wait_until_stuck(run)
    said = _said_at_its_end(started)
    assert f"rank {rank} failed while training ({during}): StallError: nothing has moved for " in said, said
    assert all(word in said for word in words.split("…")), said
    assert f"the same command goes on from {run.checkpoint(1)}" in said, "checkpoint-2 is committed in step 3"
    assert "exit 1" in said
    assert "Current thread" in run.rank_log(0).read_text()
    assert processes_of(run) == []


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_request_to_stop_ends_a_group_that_hangs_within_seconds(start, tmp_path, *, torchrun) -> None:
    """No rank comes to a step's edge, and rank 0 is where Python runs no handler of a signal."""
    run = RunDirectory(tmp_path / "run")
    started = start(SLEEPS, torchrun=torchrun)
    _wait_until_stuck(run)
    time.sleep(1)
    started.send_signal(signal.SIGTERM)
    said = _said_at_its_end(started)
    assert "ended by SIGTERM without a last checkpoint, because nothing has moved for " in said, said
    assert "rank 1 is in from_ (micro_batches.py:" in said, said
    assert f"the same command goes on from {run.checkpoint(1)}" in said, "checkpoint-2 is committed in step 3"
    assert "exit 143" in said
    assert processes_of(run) == []


def test_a_request_to_stop_is_heard_between_batches_of_an_evaluation(start, rows, tmp_path) -> None:
    """What is trained is saved at once; the whole evaluation would take minutes."""
    run, evaluation = RunDirectory(tmp_path / "run"), tmp_path / "evaluation.jsonl"
    evaluation.write_text(rows["train"].read_text() * 10)
    train = {"max_steps": 40, "eval_steps": 2}
    started = start("2", worker=EVALUATES, train=train, data={"eval_path": str(evaluation)})
    wait_until(lambda: run.events.is_file() and '"training"' in run.events.read_text(), seconds=120)
    time.sleep(5)
    started.send_signal(signal.SIGTERM)
    said = _said_at_its_end(started)
    assert "exit 143" in said, said
    assert [record["step"] for record in read_metrics(run)] == [1, 2]
    assert run.checkpoints()[-1][0] == 2
    assert "the evaluation after step 2 was left out: the run was asked to stop" in run.notices.read_text()
