"""A run that has finished is known to have, whatever comes between: a kill, or a shutdown."""

import itertools
import os
import shutil
import time
from contextlib import nullcontext
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch

from shardwise import api
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import read_json
from shardwise.train import worker
from shardwise.train.build import Build
from shardwise.train.loop import train
from shardwise.train.saving import export, final
from shardwise.train.saving.atomic import SaveError
from shardwise.train.watching.watchdog import StopFlag
from tests.dist.cells import execution, journal_of, prepare_cell, run_built
from tests.marks import CI

#: A worker that aborts when the interpreter shuts down, and hands something over before that.
ABORTED = """
import atexit, os
from pathlib import Path

class Aborts:
    def __del__(self, abort=os.abort):  # by then `os` may have gone
        abort()

os.last = Aborts()
atexit.register(Path(os.environ["TEST_HANDED_OVER"]).touch)
"""


@pytest.mark.slow
def test_no_shutdown_of_the_interpreter_turns_success_into_failure(make_job, worker, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TEST_HANDED_OVER", str(tmp_path / "handed over"))
    train, updates = {"max_steps": 1, "warmup_steps": 0}, list[object]()
    job = make_job(train=train, hardware="cpu:1", output_dir=str(tmp_path / "run"))
    worker(ABORTED, warm=False)
    result = api.train(job, on_update=updates.append)
    assert result.outcome == "finished"
    assert not any(isinstance(update, api.Notice) for update in updates)
    assert "done, outcome finished" in result.run.rank_log(0).read_text()
    assert (tmp_path / "handed over").exists()


def _finish(built: Build, fails: Exception | None = None) -> str:
    """Trains, or goes on, and finishes as a worker does; what a failure says."""
    start, journal = built.checkpoints.restore(), journal_of(built)
    ended = train(built, start=start, journal=journal, stop=StopFlag())
    with patch.object(final, "copy_configuration", side_effect=fails) if fails else nullcontext():
        try:
            worker._finish(built, ended, run=journal.run, hardware="cpu:1", journal=journal, seconds=1.0)
        except SaveError as error:
            return str(error)
    return f"from step {start}"


FSDP = execution(Layout(dp_shard=2), micro_batch_size=4)


@pytest.mark.parametrize(
    ("method", "save_steps", "kept"),
    [("full", 0, []), ("lora", 0, [4]), ("full", 3, [4, 3])],
    ids=["full", "lora", "full with save_steps"],
)
def test_at_the_end_a_checkpoint_stays_if_small_or_asked_for(method, save_steps, kept, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(method=method, train={"max_steps": 4, "save_steps": save_steps}), tmp_path)
    assert run_built(_finish, run, FSDP) == ["from step 0"] * 2
    said = read_json(run.outcome) or {}
    assert (said["outcome"], said["saved_step"], run.final.is_dir()) == ("finished", 4 if kept else None, True)
    assert [step for step, _ in run.checkpoints()] == kept


def _finish_without_memory(built: Build, ranks: tuple[int, ...]) -> str:
    """Finishes where some ranks have no memory for the second tensor; what is said."""
    real, number, left = export.gathered, itertools.count(), built.checkpoints.run.root / "left"
    has_memory = int(os.environ["RANK"]) not in ranks

    def gathered(parameter: torch.Tensor) -> torch.Tensor:
        if next(number) != 1:
            return real(parameter)
        while has_memory and not left.exists():
            time.sleep(0.05)
        raise SystemExit("ended by the launcher") if has_memory else torch.OutOfMemoryError("CUDA out of memory")

    export.gathered, final._MEETING = gathered, timedelta(seconds=2)
    try:
        return _finish(built)
    except (RuntimeError, SystemExit) as error:
        left.touch()
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("chosen", "finish", "fails", "words"),
    [
        pytest.param(FSDP, _finish_without_memory, (0, 1), "OutOfMemoryError: CUDA out of memory", id="memory"),
        pytest.param(execution(), _finish_without_memory, (0,), "OutOfMemoryError: CUDA", id="alone", marks=CI),
        pytest.param(FSDP, _finish, OSError(28, "No space left on device"), "No space left on device: ", id="disk"),
        # As from transformers or PEFT.
        pytest.param(FSDP, _finish, KeyError("rope_theta"), "KeyError: 'rope_theta'", id="library", marks=CI),
    ],
)
def test_what_was_trained_is_kept_if_final_cannot_be_written(chosen, finish, fails, words, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(train={"max_steps": 2}), tmp_path)
    for said in run_built(finish, run, chosen, fails):
        assert f"writing final/ failed on rank 0: {words}" in said
        assert "the same command writes it again from checkpoint-2" in said
    assert not run.final.exists()
    assert run_built(_finish, run, chosen) == ["from step 2"] * chosen.layout.world_size
    assert run.final.is_dir()


@pytest.mark.slow
def test_a_rank_that_alone_cannot_gather_does_not_wait_for_others_that_wait_for_it(make_job, tmp_path) -> None:
    run = prepare_cell(make_job(train={"max_steps": 2}), tmp_path)
    said = run_built(_finish_without_memory, run, FSDP, (1,))
    assert said == ["SystemExit: ended by the launcher", "OutOfMemoryError: CUDA out of memory"]
    assert not run.final.exists()


@pytest.mark.slow
def test_a_start_behind_the_last_step_ends_as_the_run_that_took_it(make_job, tmp_path) -> None:
    """One that was killed while it saved its result; it was all warm-up, and says so."""
    train = {"max_steps": 1, "save_steps": 1, "warmup_steps": 3}
    job = make_job(method="lora", train=train, output_dir=str(tmp_path / "run"), hardware="cpu:1")
    before = api.train(job)
    measured, run = before.run.measured.read_bytes(), before.run
    assert "all of which are warm-up: nothing will be trained" in run.notices.read_text()
    shutil.rmtree(run.final)
    run.outcome.unlink()
    again = api.train(job)
    assert (again.outcome, again.step, run.final.is_dir()) == ("finished", 1, True)
    assert (read_json(run.outcome) or {})["step"] == 1
    assert run.measured.read_bytes() == measured
    assert again.report.outcome.state == "finished"
