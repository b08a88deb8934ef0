"""A run directory: its job, its number of processes, who else is in it, and its result."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from shardwise import api
from shardwise.api import plan
from shardwise.api.runs.opening import replanned
from shardwise.errors import DamagedResultError, RunDirectoryError
from shardwise.launch.lock import locked
from shardwise.launch.run_folder import check_same_job, has_result, held_to, is_finished, known_data, write_start
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.request import read_request
from shardwise.spec.result import HASHED_BYTES
from shardwise.spec.run import RunDirectory, append_line, read_json, write_json
from shardwise.train.saving.checkpoint import identity_of
from tests.refusals import said_by


def job(**keys: Any) -> Job:
    return job_from_data({"model": "m", "data": {"path": "d.jsonl"}, **keys})


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
    full, said_so = OSError(28, "No space left on device"), "cannot be locked: No space left on device; choose an"
    with patch("os.write", side_effect=full), pytest.raises(RunDirectoryError, match=said_so), locked(run):
        pass
    with pytest.raises(RunDirectoryError, match="cannot be used"), locked(inside):
        pass


BEFORE = {"first_step": 1, "hardware": "cpu:4", "world_size": 4}


def test_another_number_of_processes_is_said_or_refused_and_the_same_is_not(run) -> None:
    now = api.plan(overrides=["model=smollm2-135m", "hardware=cpu:2", "data.num_rows=10", "data.max_length=64"])
    append_line(run.starts, BEFORE)
    assert replanned(run, now, allowed=True) is None, "there is no checkpoint to go on from"
    write_json(run.checkpoint(7) / "manifest.json", {})
    layout = now.best.execution.layout
    assert replanned(run, now, allowed=True) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2: it was planned again "
        f"({layout.strategy}, {layout.written}) and goes on from checkpoint-7 with the same global batch and the same "
        "samples"
    )
    assert said_by(RunDirectoryError, replanned, run, now, allowed=False) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2, and --no-replan is set; start it with "
        "cpu:4 again, or leave --no-replan out to plan it again"
    )
    append_line(run.starts, {**BEFORE, "hardware": "cpu:2", "world_size": 2})
    assert replanned(run, now, allowed=False) is None


CONTENT = {"config.json": b"{}", "model.safetensors": b"weights", "large.safetensors": None}


@pytest.fixture
def finished(run: RunDirectory) -> RunDirectory:
    """A run that came to its end; one file is too large to be hashed where nothing changed it."""
    run.final.mkdir()
    files: dict[str, object] = {}
    for name, content in CONTENT.items():
        path = run.final / name
        path.write_bytes(content or b"")
        if content is None:
            os.truncate(path, HASHED_BYTES + 1)
        digest = hashlib.sha256(content).hexdigest() if content else "not looked at"
        files[name] = {"size": path.stat().st_size, "sha256": digest}
    write_json(run.final / "manifest.json", {"files": files})
    write_json(run.outcome, {"outcome": "finished", "step": 3})
    write_json(run.resolved, job().to_json())
    return run


def test_a_finished_run_has_its_result_and_goes_on_where_the_job_asks_for_another_length(finished) -> None:
    assert has_result(finished, job())
    longer = job(train={"max_steps": 6})
    with pytest.raises(RunDirectoryError, match=r"without a checkpoint.* where train\.save_steps is set"):
        has_result(finished, longer)
    finished.checkpoint(3).mkdir()
    with pytest.raises(RunDirectoryError, match=r"no manifest, which is written last: checkpoint-3\. They are unf"):
        has_result(finished, longer)
    write_json(finished.checkpoint(3) / "manifest.json", {})
    check_same_job(finished, longer)
    assert not has_result(finished, longer)
    finished.outcome.unlink()
    assert not has_result(finished, job())


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_fewer_steps_than_were_trained_are_refused_before_anything_is_touched(finished: RunDirectory, state) -> None:
    """By steps, by epochs of two steps each, and of a stopped run by what it saved."""
    write_json(finished.outcome, {"outcome": state, "step": 3})
    write_json(finished.checkpoint(3) / "manifest.json", {})
    append_line(finished.metrics, {"step": 3, "epoch": 1.5})
    for length, asked in (({"max_steps": 2}, 2), ({"num_train_epochs": 1}, 2), ({"num_train_epochs": 0.2}, 1)):
        with pytest.raises(RunDirectoryError, match=f"has trained 3 steps, and this job asks for {asked}; raise train"):
            check_same_job(finished, job(train=length))
    for length in ({"max_steps": 3}, {"num_train_epochs": 1.5}, {"num_train_epochs": 2}):
        check_same_job(finished, job(train=length))


def _flip(path: Path, *, keeps_time: bool = False) -> None:
    """Changes one byte of a file, which keeps its size, and with `keeps_time` its time."""
    before = path.stat()
    time.sleep(0.02)  # a tick of the file system's clock
    with path.open("r+b") as file:
        file.seek(12345)
        file.write(b"!")
    if keeps_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda final: (final / "model.safetensors").unlink(), "model.safetensors is missing"),
    (lambda final: os.truncate(final / "model.safetensors", 3), "model.safetensors has 3 bytes, and 7 were written"),
    (lambda final: (final / "model.safetensors").write_bytes(b"wEights"), "model.safetensors is not what was written"),
    (lambda final: _flip(final / "large.safetensors"), "large.safetensors is not what was written"),
    (lambda final: _flip(final / "large.safetensors", keeps_time=True), "large.safetensors is not what was written"),
    (lambda final: (final / "manifest.json").write_text("{"), "manifest.json is missing or damaged"),
    (lambda final: (final / "manifest.json").write_text('{"files": {"config.json": 2}}'), "config.json has 2 bytes"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_a_damaged_result_is_named(finished: RunDirectory, damage: Callable[[Path], object], words: str) -> None:
    damage(finished.final)
    with pytest.raises(DamagedResultError, match="its result is damaged") as caught:
        has_result(finished, job())
    assert words in str(caught.value)
    assert caught.value.exit_code == 1


def test_the_way_out_is_the_beginning_or_the_newest_checkpoint(finished: RunDirectory) -> None:
    (finished.final / "config.json").unlink()
    with pytest.raises(DamagedResultError, match=f"remove {finished.final}, and the same command trains from the beg"):
        has_result(finished, job())
    for step in (2, 4):
        write_json(finished.checkpoint(step) / "manifest.json", {})
    with pytest.raises(DamagedResultError, match=r"config\.json is missing.* goes on from checkpoint-4 and writes it"):
        has_result(finished, job())
