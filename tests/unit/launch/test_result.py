"""A finished run's result is whole as its manifest says, or a sentence names file and remedy."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.errors import DamagedResultError, RunDirectoryError
from shardwise.launch.run_folder import check_same_job, has_result
from shardwise.spec.job.file import job_from_data
from shardwise.spec.result import HASHED_BYTES, result_fault
from shardwise.spec.run import RunDirectory, append_line, write_json

JOB = job_from_data({"model": "m"})
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
    write_json(run.resolved, JOB.to_json())
    return run


def test_a_whole_result_is_one(finished: RunDirectory) -> None:
    assert has_result(finished, JOB)
    finished.outcome.unlink()
    assert not has_result(finished, JOB)


def test_a_finished_run_goes_on_where_the_job_asks_for_another_length(finished: RunDirectory) -> None:
    longer = job_from_data({"model": "m", "train": {"max_steps": 6}})
    with pytest.raises(RunDirectoryError, match=r"without a checkpoint.* where train\.save_steps is set"):
        has_result(finished, longer)
    finished.checkpoint(3).mkdir()
    with pytest.raises(RunDirectoryError, match=r"no manifest, which is written last: checkpoint-3\. They are unf"):
        has_result(finished, longer)
    write_json(finished.checkpoint(3) / "manifest.json", {})
    check_same_job(finished, longer)
    assert not has_result(finished, longer)


@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_fewer_steps_than_were_trained_are_refused_before_anything_is_touched(finished: RunDirectory, state) -> None:
    """By steps, by epochs of two steps each, and of a stopped run by what it saved."""
    write_json(finished.outcome, {"outcome": state, "step": 3})
    write_json(finished.checkpoint(3) / "manifest.json", {})
    append_line(finished.metrics, {"step": 3, "epoch": 1.5})
    for length, asked in (({"max_steps": 2}, 2), ({"num_train_epochs": 1}, 2), ({"num_train_epochs": 0.2}, 1)):
        with pytest.raises(RunDirectoryError, match=f"has trained 3 steps, and this job asks for {asked}; raise train"):
            check_same_job(finished, job_from_data({"model": "m", "train": length}))
    for length in ({"max_steps": 3}, {"num_train_epochs": 1.5}, {"num_train_epochs": 2}):
        check_same_job(finished, job_from_data({"model": "m", "train": length}))


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
        has_result(finished, JOB)
    assert words in str(caught.value)
    assert caught.value.exit_code == 1


def test_the_way_out_names_the_newest_checkpoint(finished: RunDirectory) -> None:
    for step in (2, 4):
        write_json(finished.checkpoint(step) / "manifest.json", {})
    (finished.final / "config.json").unlink()
    with pytest.raises(DamagedResultError, match=r"goes on from checkpoint-4 and writes it again"):
        has_result(finished, JOB)
    assert result_fault(finished.final) == "config.json is missing"
