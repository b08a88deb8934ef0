"""`train --find-batch`: what is measured on all ranks decides, and the run keeps it."""

import pytest

from shardwise import api
from shardwise.catalog import processors
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory, read_json, read_metrics
from shardwise.units import MIB

TRAIN = {"max_steps": 1, "warmup_steps": 0, "gradient_checkpointing": "none"}


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mebibytes"), [("ddp", 38), ("fsdp", 36)])
def test_what_fits_despite_its_forecast_is_found_and_kept(layout, mebibytes, make_job, tmp_path, monkeypatch) -> None:
    """For the forecast's margin 16 rows are too many, and they take less."""
    monkeypatch.setattr(processors, "available_memory", lambda: 2 * mebibytes * MIB)
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
    monkeypatch.setattr(processors, "available_memory", lambda: 33 * MIB)
    job = make_job("wide", train=TRAIN | {"global_batch_size": 16}, hardware="cpu:1", output_dir=str(tmp_path / "run"))
    plan = read_plan(api.train(job, find_micro_batch=True).run.plan)
    assert [(one.micro_batch_size, one.fits) for one in plan.found_batch.tried] == [(8, True), (16, False)]
    assert plan.found_batch.next.peak_bytes > 33 * MIB
    assert plan.best.execution.micro_batch_size == 8
