"""A run directory: the job that it is of, the number of processes, and who else is in it."""

import os
import subprocess
import sys
from typing import Any

import pytest

from shardwise import api
from shardwise.api import plan
from shardwise.api.runs.opening import replanned
from shardwise.errors import RunDirectoryError
from shardwise.launch.lock import locked
from shardwise.launch.run_folder import check_same_job, held_to, is_finished, known_data, write_start
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.request import read_request
from shardwise.spec.run import RunDirectory, append_line, read_json, write_json
from shardwise.train.saving.identity import identity_of


def job(**keys: Any) -> Job:
    return job_from_data({"model": "m", "data": {"path": "d.jsonl"}, **keys})


def test_another_job_is_refused_with_the_first_difference_and_the_way_out(run: RunDirectory) -> None:
    write_json(run.resolved, job(train={"learning_rate": 1e-4, "seed": 1}).to_json())
    append_line(run.metrics, {"step": 1, "loss": 2.0})
    with pytest.raises(RunDirectoryError) as caught:
        check_same_job(run, job(train={"learning_rate": 2e-4, "seed": 2}))
    assert "train.learning_rate = 0.0001, and this job has 0.0002" in str(caught.value)
    assert "set another output_dir" in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"hardware": "cpu:2", "layout": {"dp_shard": 2}, "output_dir": "elsewhere/../here"},
        {"train": {"micro_batch_size": 4, "gradient_checkpointing": "full", "save_steps": 7, "report_to": "wandb"}},
    ],
)
def test_what_does_not_change_the_result_may_change(run: RunDirectory, changed: dict[str, Any]) -> None:
    check_same_job(run, job(data={"path": "corrected.jsonl"}))  # no step was taken
    write_json(run.resolved, job().to_json())
    append_line(run.metrics, {"step": 1, "loss": 2.0})
    check_same_job(run, job(**changed))


def test_what_a_run_has_settled_stays_where_the_job_leaves_it_open(run: RunDirectory) -> None:
    write_json(run.resolved, job(train={"precision": "mixed", "optimizer": "adamw"}).to_json())
    assert held_to(run, read_request(job())).job.train.precision == "auto", "no step was taken, so nothing is settled"
    append_line(run.metrics, {"step": 1, "loss": 2.0})
    check_same_job(run, job())
    held = held_to(run, read_request(job())).job.train
    assert (held.precision, held.optimizer, held.micro_batch_size) == ("mixed", "adamw", "auto")
    assert held_to(run, read_request(job(train={"precision": "bf16"}))).job.train.precision == "bf16"
    with pytest.raises(RunDirectoryError, match=r'train\.precision = "mixed", and this job has "bf16"'):
        check_same_job(run, job(train={"precision": "bf16"}))


def test_a_run_that_began_before_experts_were_quantised_goes_on_with_wide_ones(run: RunDirectory) -> None:
    before = job(method="qlora").to_json()
    del before["train"]["quantize_experts"]
    write_json(run.resolved, before)
    append_line(run.metrics, {"step": 1, "loss": 2.0})
    check_same_job(run, job(method="qlora"))
    held = held_to(run, read_request(job(method="qlora"))).job
    assert not held.quantises_experts
    assert "quantize_experts" not in identity_of(held, model={}, data="")["job"]["train"]
    with pytest.raises(RunDirectoryError, match=r"train\.quantize_experts = false, and this job has true"):
        check_same_job(run, job(method="qlora", train={"quantize_experts": True}))


def test_a_new_run_quantises_experts_and_keeps_to_it(run: RunDirectory) -> None:
    made = plan(Job.model_validate(job(method="qlora", model="olmoe-1b-7b", hardware="1x H100-SXM").to_json()))
    write_start(run, read_request(job(method="qlora")), plan=made)
    assert read_json(run.resolved)["train"]["quantize_experts"] is True
    append_line(run.metrics, {"step": 1, "loss": 2.0})
    held = held_to(run, read_request(job(method="qlora"))).job
    assert held.train.quantize_experts is True
    assert identity_of(held, model={}, data="")["job"]["train"]["quantize_experts"] is True


def test_a_folder_with_other_files_is_left_alone(run: RunDirectory) -> None:
    (run.root / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"holds other files \(thesis\.tex\); name a new or empty folder"):
        check_same_job(run, job())


def test_a_damaged_record_of_the_job_is_named_and_settles_nothing(run: RunDirectory) -> None:
    assert held_to(run, read_request(job())).job == job()
    run.resolved.write_text("{")
    assert held_to(run, read_request(job())).job == job()
    with pytest.raises(RunDirectoryError, match=r"resolved\.yaml: the job of the run in this folder cannot be read"):
        check_same_job(run, job())


def test_finished_means_that_the_outcome_says_so_and_the_result_is_there(run: RunDirectory) -> None:
    write_json(run.logs / "outcome.json", {"outcome": "finished", "step": 3})
    run.final.mkdir()
    assert not is_finished(run)
    (run.final / "config.json").touch()
    assert is_finished(run)
    write_json(run.logs / "outcome.json", {"outcome": "stopped", "step": 3})
    assert not is_finished(run)


def test_the_number_of_samples_is_known_once_the_data_are_prepared(run: RunDirectory) -> None:
    assert known_data(run) == (None, None)
    train = {"num_rows": 10, "num_samples": 4, "num_tokens": 100, "longest": 40}
    write_json(run.data, {"version": 1, "train": train, "eval": None})
    assert known_data(run) == (4, Lengths(longest=40, mean=25.0, document=10.0))


def test_a_folder_is_one_runs_at_a_time_and_no_file(run: RunDirectory) -> None:
    in_use = rf"is in use by another run \(process {os.getpid()}\)"
    with locked(run), pytest.raises(RunDirectoryError, match=in_use), locked(run):
        pass
    with locked(run):
        pass
    said: list[str] = []
    code = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(); time.sleep(1)"
    (run.root / ".lock").write_text("99999999")  # a launcher that is gone
    with subprocess.Popen([sys.executable, "-uc", code, str(run.root / ".lock")], stdout=subprocess.PIPE) as rank:
        rank.stdout.readline()
        with locked(run, say=said.append):
            assert rank.wait() == 0
    assert said == [f"{run.root} is held by ranks whose launcher is gone; waiting up to 60 s for them"]
    inside = RunDirectory(run.logs / "file")
    inside.root.touch()
    with pytest.raises(RunDirectoryError, match="cannot be used"), locked(inside):
        pass


BEFORE = {"first_step": 1, "hardware": "cpu:4", "world_size": 4}


@pytest.fixture
def now():
    """The plan for two processes."""
    return api.plan(overrides=["model=smollm2-135m", "hardware=cpu:2", "data.num_rows=10", "data.max_length=64"])


def test_another_number_of_processes_is_said_or_refused_and_the_same_is_not(run, now) -> None:
    append_line(run.starts, BEFORE)
    assert replanned(run, now, allowed=True) is None, "there is no checkpoint to go on from"
    write_json(run.checkpoint(7) / "manifest.json", {})
    layout = now.best.execution.layout
    assert replanned(run, now, allowed=True) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2: it was planned again "
        f"({layout.strategy}, {layout.written}) and goes on from checkpoint-7 with the same global batch and the same "
        "samples"
    )
    with pytest.raises(RunDirectoryError) as caught:
        replanned(run, now, allowed=False)
    assert str(caught.value) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2, and --no-replan is set; start it with "
        "cpu:4 again, or leave --no-replan out to plan it again"
    )
    append_line(run.starts, {**BEFORE, "hardware": "cpu:2", "world_size": 2})
    assert replanned(run, now, allowed=False) is None
