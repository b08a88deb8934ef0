"""`train --find-batch` keeps what all ranks measured; a run out of memory says which rank was."""

import re

import pytest

from shardwise import api
from shardwise.catalog import devices
from shardwise.errors import WorkerFailedError
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory, read_json, read_metrics
from shardwise.units import MIB
from tests.dist.worlds import said_by

TRAIN = {"max_steps": 1, "warmup_steps": 0, "gradient_checkpointing": "none"}


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mebibytes"), [("ddp", 38), ("fsdp", 36)])
def test_what_fits_despite_its_forecast_is_found_and_kept(layout, mebibytes, make_job, tmp_path, monkeypatch) -> None:
    """For the forecast's margin 16 rows are too many, and they take less."""
    monkeypatch.setattr(devices, "available_memory", lambda: 2 * mebibytes * MIB)
    train = TRAIN | {"global_batch_size": 32, "save_steps": 1}
    job = make_job("wide", train=train, hardware="cpu:2", layout=layout, output_dir=str(tmp_path / "run"))
    run = api.train(job, find_micro_batch=True).run
    plan, metrics = read_plan(run.plan), read_metrics(run)
    assert plan.best.execution.micro_batch_size == 16
    found = plan.found_batch
    assert [(one.micro_batch_size, one.fits) for one in found.tried] == [(8, True), (16, True)]
    assert plan.best.memory.peak_high_bytes > found.capacity_bytes >= found.best.peak_bytes
    assert [len(one["peak_memory_bytes"]) for one in metrics] == [2]
    assert max(metrics[0]["peak_memory_bytes"]) <= found.best.peak_bytes, "rows of a trial are the longest"
    trial = RunDirectory(run.logs / "batch_16")
    assert (read_json(trial.measured)["steps"], trial.checkpoints(), trial.final.exists()) == (2, [], False)
    monkeypatch.setattr("shardwise.api.runs.training.find_batch", None)  # which would be called to find it again
    api.train(job, overrides=["train.max_steps=2"], find_micro_batch=True)
    assert len(read_metrics(run)) == 2
    again = read_plan(run.plan)
    assert (again.found_batch, again.best.execution) == (found, plan.best.execution)


def test_steps_that_take_more_than_there_is_are_no_fit(make_job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(devices, "available_memory", lambda: 33 * MIB)
    job = make_job("wide", train=TRAIN | {"global_batch_size": 16}, hardware="cpu:1", output_dir=str(tmp_path / "run"))
    plan = read_plan(api.train(job, find_micro_batch=True).run.plan)
    assert [(one.micro_batch_size, one.fits) for one in plan.found_batch.tried] == [(8, True), (16, False)]
    assert plan.found_batch.next.peak_bytes > 33 * MIB
    assert plan.best.execution.micro_batch_size == 8


#: A worker whose rank 1 gets no memory in its second step, later than rank 0 could fail of it.
SHORT = """
import torch
from shardwise.train.watching.journal import Journal

begins = Journal.stepping

def stepping(journal):
    begins(journal)
    if journal.rank == 1 and journal.step == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

Journal.stepping = stepping
"""

SENTENCE = re.compile(
    r"rank 1 failed while training \(step 2\): out of memory: planned [0-9.]+ [KM]iB at the peak \([a-z0-9 ]+\) of "
    r"[0-9.]+ GiB for each process, measured [0-9.]+ [MG]iB resident when 2\.0 GiB more were asked for, on a machine "
    r"with [0-9.]+ GiB of which others hold [0-9.]+ [MG]iB; no part that can be measured is larger than planned; "
    r"next: --set train\.micro_batch_size=2 \(loop\.py:\d+\)\nits log: .*rank_1\.log"
)


def test_out_of_memory_is_said_as_planned_beside_measured_with_the_next_setting(make_job, worker, tmp_path) -> None:
    train = {"max_steps": 3, "warmup_steps": 0, "micro_batch_size": 4}
    job = make_job(train=train, hardware="cpu:2", layout="ddp", output_dir=str(tmp_path / "run"))
    worker(SHORT)
    said = said_by(WorkerFailedError, api.train, job)
    assert SENTENCE.fullmatch(said), said
