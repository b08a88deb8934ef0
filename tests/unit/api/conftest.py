import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import counting
from tests.unit.counting import asked, chat_model, rows
from tests.unit.fakes import Maker, module_maker
from tests.warm.shim import KIND

__all__ = ["asked", "chat_model", "rows"]

#: A decoder of a few thousand parameters, which fits everywhere.
CONFIG = counting.CONFIG | {"vocab_size": 128, "max_position_embeddings": 256}

PREPARE = """
print("counting rows", file=sys.stderr)
train = {"num_rows": 10, "num_samples": 10, "num_tokens": 200, "longest": 30}
write_json(run.data, {"version": 1, "train": train, "eval": None})
"""

TRAIN = """
import hashlib

listen()
if rank == 0:
    announce(run, "training", total_steps=3)
    for step in (1, 2, 3):
        append_line(run.metrics, {"step": step, "loss": 4.0 - step, "step_seconds": 0.1})
    write_text(run.final / "config.json", "{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    write_json(run.final / "manifest.json", {"files": {"config.json": {"size": 2, "sha256": digest}}})
outcome("finished")
"""

JobMaker = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "modules"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(KIND, "pure")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    maker = module_maker(tmp_path / "modules", monkeypatch)
    maker(PREPARE, name="fake_prepare")
    maker(TRAIN, name="fake_worker")
    return maker


@pytest.fixture
def job(tmp_path: Path) -> JobMaker:
    """Writes a job file for the tiny model; more keys as YAML lines."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))

    def write(*lines: str, hardware: str = "cpu:2") -> Path:
        path = tmp_path / "job.yaml"
        (tmp_path / "rows.jsonl").touch()
        data = f"data: {{path: {tmp_path}/rows.jsonl, max_length: 64}}"
        head = [f"model: {model}", data, f"output_dir: {tmp_path / 'run'}"]
        path.write_text("\n".join([*head, f"hardware: {hardware}", *lines]) + "\n", encoding="utf-8")
        return path

    return write
