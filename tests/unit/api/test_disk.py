"""A run whose disk has no room for what it writes stops before it prepares, and says why."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise import api
from shardwise.cli.plan_table import why
from shardwise.errors import InputError
from shardwise.spec.run import RunDirectory
from shardwise.units import format_bytes
from tests.refusals import must_refuse
from tests.unit.disks import small_disk

SAVING = "train: {max_steps: 60, save_steps: 10, optimizer: adamw, precision: fp32}"


def on(disk: Path, job, *lines: str) -> Path:
    path = job(*lines)
    path.write_text(path.read_text().replace(str(path.parent / "run"), str(disk / "run")))
    return path


def test_a_run_that_cannot_save_what_is_asked_stops_before_it_begins_and_leaves_nothing(make, job, tmp_path) -> None:
    make("raise SystemExit('prepared after all')", name="no_prepare")
    with small_disk(tmp_path / "disk", kib=600) as disk:
        path = on(disk, job, SAVING)
        with pytest.raises(InputError) as caught:
            api.train(path)
        assert caught.value.exit_code == 2
        forecast = api.plan(path).disk
        assert forecast.total_bytes == 3 * forecast.checkpoint_bytes > 600 * 1024
        one, final, total = map(format_bytes, (forecast.checkpoint_bytes, forecast.final_bytes, forecast.total_bytes))
        missing = format_bytes(forecast.total_bytes - 596 * 1024)  # a lock lies there
        assert str(caught.value) == (
            f"{path}:3: output_dir {disk}/run is to hold 3 checkpoints of {one} and final/ of {final}, of which "
            f"{total} are not there yet, and its disk ({disk}) has 596 KiB free; free {missing} of it, name another "
            "output_dir, or lower train.save_total_limit, now 2 (one more is held while it is written)"
        )
        assert not (disk / "run").exists()


@pytest.mark.parametrize("steps", ["max_steps: 60", "num_train_epochs: 1"])
def test_the_program_says_so_and_exits_with_2(make, job, tmp_path, steps) -> None:
    """Where the number of steps is not known, at least the result must fit."""
    with small_disk(tmp_path / "disk", kib=40) as disk:
        argv = [sys.executable, "-m", "shardwise", "train", str(on(disk, job, f"train: {{{steps}}}"))]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "is to hold final/ of" in done.stderr and "of which" in done.stderr


def test_it_is_looked_at_again_when_the_number_of_steps_is_known(make, job, tmp_path) -> None:
    with small_disk(tmp_path / "disk", kib=600) as disk:
        path = on(disk, job, SAVING.replace("max_steps: 60", "global_batch_size: 1").replace("10", "1"))
        must_refuse(InputError, r"3 checkpoints of .* has 5.. KiB free", api.train, path)
        fewer = on(disk, job, SAVING.replace("max_steps: 60", "global_batch_size: 1"))
        assert api.train(fewer).outcome == "finished"


def test_at_the_limit_it_is_said_and_far_from_it_nothing(make, job, tmp_path) -> None:
    said: list[str] = []

    def note(update: api.Update) -> None:
        if isinstance(update, api.Notice):
            said.append(update.text)

    with small_disk(tmp_path / "disk", kib=2000) as disk:
        api.train(on(disk, job, SAVING), on_update=note)
        (sentence,) = said
        assert f"and its disk ({disk}) has 1.9" in sentence
        assert sentence.endswith("will be left for logs and all else; free some before it is full")
    said.clear()
    with small_disk(tmp_path / "disk", kib=200_000) as disk:
        api.train(on(disk, job, SAVING), on_update=note)
        assert said == []


def test_checkpoints_that_are_there_already_are_counted(make, job, tmp_path) -> None:
    with small_disk(tmp_path / "disk", kib=1300) as disk:
        path = on(disk, job, SAVING)
        run, one = RunDirectory(disk / "run"), api.plan(path).disk.checkpoint_bytes
        for step in (10, 20):
            folder = run.checkpoint(step)
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
            (folder / "rank-00000.safetensors").write_bytes(bytes(one))
        run.metrics.write_text(json.dumps({"step": 20, "loss": 1.0}) + "\n")
        (run.root / "resolved.yaml").write_text(json.dumps(api.plan(path).job))
        assert api.train(path).outcome == "finished"
        for folder in (run.checkpoint(step) for step in (10, 20)):
            (folder / "rank-00000.safetensors").write_bytes(b"")
        (disk / "other").write_bytes(bytes(500 * 1024))
        run.outcome.unlink()
        must_refuse(InputError, "3 checkpoints", api.train, path)


def test_a_disk_without_room_for_more_files_is_named(make, job, tmp_path) -> None:
    with small_disk(tmp_path / "disk", kib=200_000, options=",nr_inodes=60") as disk:
        path = on(disk, job)
        with pytest.raises(InputError, match=r"/run: its disk .* has room for 5. more files; remove some"):
            api.train(path)


def test_a_plan_says_what_a_run_writes() -> None:
    made = api.plan(overrides=["model=llama-3.1-8b", "method=lora", "hardware=1x H100-SXM", "train.max_steps=10"])
    disk = made.disk
    assert disk.merged_bytes == 2 * 8_030_261_248
    assert (disk.checkpoints_bytes, disk.data_cache_bytes) == (disk.checkpoint_bytes, None)
    assert "output_dir holds" not in " ".join(why(made)), "an adapter's bytes do not matter"
    keys = ["method=full", "train.save_steps=2", "hardware=4x H100-SXM", "data.num_rows=1000", "data.max_length=512"]
    made = api.plan(overrides=["model=llama-3.1-8b", "train.max_steps=10", *keys])
    disk = made.disk
    assert disk.checkpoints_bytes == 3 * disk.checkpoint_bytes == disk.total_bytes
    assert disk.final_bytes == 2 * 8_030_261_248 and disk.data_cache_bytes == 1000 * (512 * 5 + 42)
    assert why(made)[-1] == (
        f"output_dir holds {format_bytes(disk.total_bytes)} at most: 3 checkpoints of "
        f"{format_bytes(disk.checkpoint_bytes)} and final/ of 15.0 GiB"
    )
