"""What a run writes is what its plan says, and a disk that is too small for it is said before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise import api
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.file import read_plan


def bytes_of(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


slow = pytest.mark.slow

CASES = [
    pytest.param("full", "cpu:1", {"optimizer": "adamw"}, id="adamw"),
    pytest.param("lora", "cpu:1", {"optimizer": "adamw"}, id="lora"),
    pytest.param("full", "cpu:2", {"optimizer": "adamw", "precision": "bf16"}, id="bf16 on two", marks=slow),
    pytest.param("full", "cpu:1", {"optimizer": "adamw_8bit"}, id="adamw_8bit", marks=slow),
    pytest.param("full", "cpu:1", {"optimizer": "adafactor"}, id="adafactor", marks=slow),
    pytest.param("full", "cpu:1", {"optimizer": "sgd"}, id="sgd", marks=slow),
    pytest.param("full", "cpu:1", {"optimizer": "sgd", "momentum": 0.9}, id="momentum", marks=slow),
    pytest.param("full", "cpu:1", {"save_dtype": "bfloat16"}, id="saved in bfloat16", marks=slow),
    pytest.param("qlora", "cpu:1", {"optimizer": "adamw"}, id="qlora", marks=slow),
]


@pytest.mark.parametrize(("method", "hardware", "train"), CASES)
def test_a_checkpoint_and_the_result_take_the_bytes_that_are_forecast(
    make_job: Callable[..., Job], tmp_path: Path, method, hardware, train
) -> None:
    lora = {"lora": {"r": 64, "lora_alpha": 8}} if method != "full" else {}
    where = {"output_dir": str(tmp_path / "run"), "hardware": hardware}
    steps = {"max_steps": 5, "warmup_steps": 0, "save_steps": 2, "save_total_limit": None}
    job = make_job("of whole blocks", method=method, train={**steps, **train}, **where, **lora)
    run = api.train(job).run
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
