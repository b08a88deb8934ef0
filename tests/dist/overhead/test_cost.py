"""Guards are always on, and cost under 1 % of a step; ranks import what their lane uses."""

import json
import time
from statistics import median

import pytest

from shardwise import api
from shardwise.catalog.models import read_model
from shardwise.data.digests import look
from shardwise.spec.layout.axes import Layout
from shardwise.train.build import Build
from shardwise.train.guards.checks import REPLICA_CHECK_STEPS, check_finite, check_replicas, check_sights, gather
from shardwise.train.optim import Update, gradient_norm
from tests.dist.cells import prepare_cell, run_built, spread
from tests.dist.worlds import toy_model

STEPS = 6


def _costs(built: Build) -> tuple[float, float]:
    """Median processor seconds of a step, and of its guards; wall time would count waiting too."""
    world, parameters = built.world, built.model.parameters
    steps: list[float] = []
    guards: list[float] = []
    for batch, _ in zip(built.batches.from_(0), range(STEPS), strict=False):
        began = time.process_time()
        loss = built.step(batch)
        norm = gradient_norm(built.model.counted, device=world.device)
        update = Update(loss=loss, norm=norm, max_norm=1.0)
        update.launch(built.optimizer, built.model.trainable, check=lambda: True)
        steps.append(time.process_time() - began)
        gather(world, None)
        began = time.process_time()
        loss, norm = update.figures
        check_finite(world, step=batch.step, loss=loss, norm=norm, bad_sample=None, where=None)
        pulse = built.metrics.pulse(stop=0, is_written=True, sight=look(batch, built.data))
        check_sights(world, batch, built.data, pulse.sights)
        each_step = time.process_time() - began
        check_replicas(world, parameters, when="now")
        guards.append(each_step + (time.process_time() - began - each_step) / REPLICA_CHECK_STEPS)
    return median(steps), median(guards)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(tp=2)], ids=lambda layout: layout.strategy)
def test_guards_take_less_than_a_hundredth_of_a_step(layout, make_job, models, tmp_path) -> None:
    """25 million parameters on short rows step faster than any model that is trained in earnest."""
    folder = tmp_path / "model"
    toy_model(folder, vocab_size=400, hidden_size=512, intermediate_size=1536, num_hidden_layers=8)
    for file in models["untied"].glob("token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    assert 24e6 < read_model(str(folder)).num_parameters < 27e6
    for step, guards in run_built(_costs, prepare_cell(make_job(folder), tmp_path / "run"), spread(layout)):
        print(f"step {1e3 * step:.1f} ms, guards {1e3 * guards:.3f} ms: {guards / step:.3%}")
        assert guards < 0.01 * step


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
    worker(LISTING, warm=False)
    assert api.train(job).outcome == "finished"
    for rank in range(processes):
        imported = json.loads((tmp_path / str(rank)).read_text())
        assert [name for name in UNUSED if name in imported] == []
        assert "transformers" in imported
