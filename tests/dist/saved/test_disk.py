"""What a run writes is what its plan says; a disk that is too small is said before it begins."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from shardwise import api
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory
from shardwise.train.build import Build
from shardwise.train.saving.atomic import SaveError
from shardwise.train.saving.checkpoint import create_states
from shardwise.units import KIB, format_bytes
from tests.dist.cells import prepare_cell, run_built, save, spread
from tests.dist.worlds import said_by
from tests.unit.disks import small_disk


def bytes_of(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


#: Method, processes, and what is said of training.
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "adamw": ("full", 1, {"optimizer": "adamw"}),
    "lora": ("lora", 1, {"optimizer": "adamw"}),
    "bf16 on two": ("full", 2, {"optimizer": "adamw", "precision": "bf16"}),
    **{name: ("full", 1, {"optimizer": name}) for name in ("adamw_8bit", "adafactor", "sgd")},
    "momentum": ("full", 1, {"optimizer": "sgd", "momentum": 0.9}),
    "saved in bfloat16": ("full", 1, {"save_dtype": "bfloat16"}),
    "qlora": ("qlora", 1, {"optimizer": "adamw"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_and_the_result_take_the_bytes_that_are_forecast(name, make_job, tmp_path) -> None:
    method, processes, train = CASES[name]
    lora = {"lora": {"r": 64, "lora_alpha": 8}} if method != "full" else {}
    where = {"output_dir": str(tmp_path / "run"), "hardware": f"cpu:{processes}"}
    steps = {"max_steps": 5, "warmup_steps": 0, "save_steps": 2, "save_total_limit": None}
    run = api.train(make_job("of whole blocks", method=method, train={**steps, **train}, **where, **lora)).run
    disk = read_plan(run.plan).disk
    saved = run.checkpoints()
    assert [step for step, _ in saved] == [5, 4, 2]
    assert disk.checkpoint_bytes == pytest.approx(bytes_of(saved[0][1]), rel=0.03)
    assert disk.checkpoints_bytes == pytest.approx(sum(bytes_of(folder) for _, folder in saved), rel=0.03)
    assert disk.final_bytes == pytest.approx(bytes_of(run.final, "*.safetensors"), rel=0.03)
    assert disk.total_bytes == disk.checkpoints_bytes + disk.final_bytes
    prepared = Path(json.loads(run.data.read_text())["train"]["folder"])
    assert disk.data_cache_bytes == pytest.approx(bytes_of(prepared, "*.bin"), rel=0.03)
    if method == "lora":
        merged = api.merge(run.root)
        assert disk.merged_bytes == pytest.approx(bytes_of(run.merged, "*.safetensors"), rel=0.03), merged


def _fill_up(built: Build) -> list[object]:
    """Saves a checkpoint, then another when the disk is nearly full, and then the result."""
    create_states(built.optimizer)
    folder = built.checkpoints.run.root
    saved = [built.checkpoints.save(1)]
    dist.barrier()
    if built.world.is_first:
        (folder / "of others").write_bytes(bytes(shutil.disk_usage(folder).free - 200 * KIB))
    dist.barrier()
    saved.append(built.checkpoints.save(2))
    return [*saved, said_by(SaveError, save, built)]


def test_a_save_without_room_says_what_it_needed_and_what_was_free(make_job, tmp_path) -> None:
    prepared = prepare_cell(make_job("wide"), tmp_path / "prepared")
    with small_disk(tmp_path / "disk", kib=20_000) as disk:
        run = RunDirectory(Path(shutil.copytree(prepared.root, disk / "run")))
        (found, _) = run_built(_fill_up, run, spread(Layout(dp_shard=2)))
        assert found[:2] == [True, False]
        size = format_bytes(bytes_of(run.checkpoint(1), "*.safetensors"))[:-6]  # without its headers
        had = rf"were to be written, and the disk of {run.root} had (20|19)\d KiB free; free some, or lower train\.save"
        said = run.notices.read_text()
        assert "checkpoint-2 was not saved: writing a checkpoint failed on rank " in said
        assert f": No space left on device: {size}" in said
        assert str(found[2]).startswith("writing final/ failed on rank 0: No space left on device: ")
        assert re.search(had, said) and re.search(had, str(found[2]))
        assert [folder.name for _, folder in run.checkpoints()] == ["checkpoint-1"]
        assert not list(run.root.glob(".[cf]*"))
