"""`verify` from the job to the verdict; then on what it left, tampered with."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from shardwise import api
from shardwise.launch.processes.helpers import weights_difference
from shardwise.report.parity import agreement
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, read_metrics
from tests.dist.compare import TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Verified:
    parity: api.Parity
    folder: Path
    updates: list[object]


@pytest.fixture(scope="module")
def verified(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """One process, and fsdp on two, five steps each, of a model that is stored in bfloat16."""
    root = tmp_path_factory.mktemp("verified")
    job = make_job("bfloat16", train={"precision": "mixed"}, hardware="cpu:2", output_dir=str(root))
    updates: list[object] = []
    parity = api.verify(job, layouts=["fsdp"], steps=5, on_update=updates.append)
    return Verified(parity=parity, folder=root / "verify", updates=updates)


#: Six trainings, each with its start; some 15 s on a machine that has nothing else to do.
LONG = pytest.mark.timeout(900)


@LONG
@pytest.mark.slow
@pytest.mark.parametrize(("model", "layout"), [("gpt2", "ddp"), ("opt", "fsdp")])
def test_adamws_own_rounding_is_told_by_sgd_and_by_damping_it(model, layout, make_job, tmp_path) -> None:
    """Softmax takes no notice of a shift of all keys: their biases have no gradient."""
    parity = api.verify(make_job(model, hardware="cpu:2", output_dir=str(tmp_path)), layouts=[layout])
    assert parity.agrees, parity.sentence
    assert "within adamw's own rounding" in parity.sentence
    for row in parity.layouts:
        assert row.weights["relative"] > 1e-5, "with AdamW they differ"
        assert row.plain is not None and row.plain.weights is not None
        assert row.plain.num_steps == 20
        assert row.plain.weights["relative"] < 1e-5
        assert read_job(RunDirectory(Path(row.plain.run)).resolved).train.optimizer == "sgd"
        assert (row.damped.first, row.damped.num_steps) == (None, 20)
        damped = read_job(RunDirectory(Path(row.damped.run)).resolved).train
        assert (damped.optimizer, damped.adam_epsilon > 1e-5) == ("adamw", True)


#: A worker whose AdamW forgets faster, in one matrix and wherever there are peers.
FAULTY = """
import os
from shardwise.train import build

build_optimizer = build.build_optimizer

def faulty(parameters, **options):
    optimizer = build_optimizer(parameters, **options)
    matrix = optimizer.param_groups[0]["params"][{which}]
    assert tuple(matrix.shape) == {shape}, matrix.shape

    def forget(*_):
        state = optimizer.state[matrix]
        if "exp_avg_sq" in state and os.environ["WORLD_SIZE"] != "1":
            state["exp_avg_sq"].mul_(0.99)

    optimizer.register_step_post_hook(forget)
    return optimizer

build.build_optimizer = faulty
"""


@LONG
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "which", "shape", "name"),
    [
        ("lora", -11, (16, 4), "layers.2.self_attn.k_proj.lora_B.weight"),
        ("full", -7, (16, 32), "layers.2.self_attn.k_proj.weight"),
    ],
)
def test_a_fault_of_adamws_state_alone_is_no_rounding(method, which, shape, name, make_job, worker, tmp_path) -> None:
    worker(FAULTY.format(which=which, shape=shape))
    job = make_job(method=method, hardware="cpu:2", output_dir=str(tmp_path / "run"))
    parity = api.verify(job, layouts=["ddp"])
    assert not parity.agrees, parity.sentence
    (row,) = parity.layouts
    assert row.first is not None and row.plain is not None and row.damped is not None
    assert (row.first.figure, row.plain.first) == ("weights", None), "nothing else shows it"
    assert row.first.note.startswith("with sgd all of it is the same, with adamw damped differs after the last step: ")
    assert row.damped.weights["worst"].endswith(name), row.damped.weights


def test_every_layout_is_the_same_training_and_leaves_a_run_directory_that_ran_it(verified) -> None:
    parity = verified.parity
    assert parity.agrees, parity.sentence
    assert [(row.layout, row.processes, row.num_steps) for row in parity.layouts] == [("fsdp-2", 2, 5)]
    for row in parity.layouts:
        assert None not in (row.loss, row.grad_norm) and row.weights["num_tensors"] > 20
    assert parity.unable == ()
    assert [u.layout for u in verified.updates if isinstance(u, api.Trying)] == ["single-1", "fsdp-2"]
    assert [change.partition(" in the job")[0] for change in parity.changes] == [
        "train.precision is fp32 here, mixed",
        "train.save_dtype is float32 here, bfloat16",
        "train.max_steps is 5 here, 20",
    ]
    for label, processes in (("single-1", 1), ("fsdp-2", 2)):
        run = RunDirectory(verified.folder / label)
        assert read_job(run.resolved).train.precision == "fp32"
        measured = json.loads(run.measured.read_text())
        assert (len(measured["ranks"]), measured["dtypes"]["compute"]) == (processes, "float32")
        assert run.report_html.exists()


def test_one_element_of_one_saved_tensor_is_caught(verified, tmp_path) -> None:
    reference, source = (RunDirectory(verified.folder / name) for name in ("single-1", "fsdp-2"))
    spoiled = RunDirectory(Path(shutil.copytree(source.root, tmp_path / "fsdp-2")))
    file = spoiled.final / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] += 1e-3
    save_file(weights, file)
    figures = {"reference": read_metrics(reference), "found": read_metrics(source), "tolerance": TOLERANCE}

    def first_difference(run: RunDirectory) -> Any:
        weights = weights_difference(reference.final, run.final, tolerance=TOLERANCE)
        return agreement("fsdp-2", processes=2, run=str(run.root), weights=weights, **figures).first

    assert first_difference(source) is None
    first = first_difference(spoiled)
    assert (first.step, first.figure) == (None, "weights")
    assert first.detail.startswith("model.layers.1.mlp.up_proj.weight differs by ")
