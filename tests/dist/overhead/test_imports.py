"""A rank imports nothing that its lane does not use, beyond what torch and transformers import."""

import json

import pytest

from shardwise import api

#: A worker that says what it has imported when it ends.
LISTING = """
import atexit, json, os, sys
from pathlib import Path
from shardwise.spec.begin import awaited_family

assert awaited_family() == "llama"
path = Path(os.environ["TEST_IMPORTED"]) / os.environ["RANK"]
atexit.register(lambda: path.write_text(json.dumps(sorted(sys.modules))))
"""

#: Beside torch.distributed.tensor, torch._dynamo and sympy, which transformers and PEFT import.
UNUSED = (
    *("torch.distributed.pipelining", "torch.distributed.run"),
    *("torch.utils.tensorboard", "tensorboard", "wandb", "mlflow", "bitsandbytes.functional"),
    *("datasets", "pandas", "pyarrow", "shardwise.data.prepare.ingest", "shardwise.plan", "shardwise.api"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "method"), [(1, "full"), pytest.param(2, "lora", marks=pytest.mark.rare)], ids=["single", "ddp"]
)
def test_a_rank_imports_what_its_lane_uses(make_job, worker, tmp_path, monkeypatch, processes, method) -> None:
    monkeypatch.setenv("TEST_IMPORTED", str(tmp_path))
    settings = {"hardware": f"cpu:{processes}", "layout": "ddp" if processes > 1 else "auto"}
    train = {"max_steps": 1, "warmup_steps": 0}
    job = make_job(method=method, train=train, output_dir=str(tmp_path / "run"), **settings)
    assert api.train(job, programs=worker(LISTING, warm=False)).outcome == "finished"
    for rank in range(processes):
        imported = json.loads((tmp_path / str(rank)).read_text())
        assert [name for name in UNUSED if name in imported] == []
        assert "transformers" in imported
