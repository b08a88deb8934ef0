"""Guards: a run that is wrong stops, with a sentence that says where."""

import itertools
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.data.digests import checksum
from shardwise.errors import ModelError, UnsupportedError
from shardwise.models.load import local_window
from shardwise.parallel.mesh import join_world
from shardwise.parallel.ownership import local_part
from shardwise.plan.work.inventory import take_inventory
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train import model, worker
from shardwise.train.build import Build
from shardwise.train.guards import checks
from shardwise.train.guards.checks import GuardError
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag, Watch
from tests.dist.cells import LAYOUTS, composed, execution, prepare_cell, run_built, spread, train_on
from tests.dist.worlds import run_world, said_by

DDP = spread(Layout(dp_replicate=2))
EACH_WAY = pytest.mark.parametrize("layout", [LAYOUTS[name] for name in ("fsdp", "pp", "tp")], ids=["fsdp", "pp", "tp"])


def _poisoned(built: Build, start: int) -> tuple[str, bool]:
    """An infinite weight in rank 1's copy makes the loss NaN; no weight may move."""
    before = [p.detach().clone() for p in built.model.trainable]
    if built.world.rank == 1:
        with torch.no_grad():
            built.model.trainable[0].fill_(float("inf"))
            before[0].fill_(float("inf"))
    said = said_by(GuardError, train_on, built, start=start)
    return said, all(torch.equal(a, b) for a, b in zip(before, built.model.trainable, strict=True))


@pytest.mark.parametrize(
    ("start", "remedy"),
    [(0, "look at that row, or at the model"), (3, "lower train.learning_rate, or look at that row")],
)
def test_a_loss_of_nan_stops_before_the_step_and_names_rank_and_row(start, remedy, make_job, rows, tmp_path) -> None:
    for said, unmoved in run_built(_poisoned, prepare_cell(make_job(), tmp_path), DDP, start):
        assert said.startswith(f"step {start + 1}: the loss is nan on rank 1 in the sample from ")
        assert said.endswith(f"The weights are those of step {start}; {remedy}")
        assert f"{rows['train'].name}:" in said
        assert unmoved


def _norm_alone(step: int) -> str:
    seen = {"loss": 1.0, "norm": float("nan"), "bad_sample": lambda: None, "where": str}
    return said_by(GuardError, checks.check_finite, join_world(Layout()), step=step, **seen)


def test_gradients_that_are_not_finite_blame_no_row_where_no_loss_is_bad() -> None:
    for step, remedy in ((1, ""), (2, "lower train.learning_rate, or ")):
        assert run_world(1, _norm_alone, step)[0] == (
            f"step {step}: the gradient norm is nan. The weights are those of step {step - 1}; {remedy}look at the "
            "model, as no sample has a loss of its own that is not finite"
        )


def _one_bad_row(built: Build) -> tuple[str, str]:
    """A token that only one sample of the first batch has gets an embedding of infinity."""
    batch = next(iter(built.batches.from_(0)))
    tokens = {sample: set(built.data.sample(sample)[0].tolist()) for sample in batch.sample_ids}
    known = Counter(token for held in tokens.values() for token in held)
    culprit, token = max((sample, token) for sample, held in tokens.items() for token in held if known[token] == 1)
    embedding = built.model.trainable[0]
    row, local = token - local_window(embedding)[0][0], local_part(embedding)
    with torch.no_grad():
        if 0 <= row < len(local):
            local[row] = float("inf")
    return said_by(GuardError, train_on, built), built.data.where(culprit)


@pytest.mark.parametrize("layout", [Layout(dp_shard=2), Layout(dp_replicate=2)], ids=["fsdp", "ddp"])
def test_the_one_bad_row_of_a_batch_is_found_whatever_holds_the_weights(layout, make_job, tmp_path) -> None:
    chosen = execution(layout, micro_batch_size=2, gradient_accumulation_steps=2)
    for said, where in run_built(_one_bad_row, prepare_cell(make_job(), tmp_path), chosen):
        assert f"in the sample from {where}" in said


def _disagree(built: Build) -> str:
    return said_by(GuardError, checks.agree, built.world, {"data": "same", "job": built.world.rank})


def test_ranks_that_started_differently_refuse_and_name_the_difference(make_job, tmp_path) -> None:
    said = run_built(_disagree, prepare_cell(make_job(), tmp_path), DDP)
    assert "job = 1" in said[0]
    assert "data" not in said[0].split(";")[0]


def _another_folder(run: RunDirectory, chosen: Execution, other: Path) -> str:
    """The last rank finds another folder under the model's name, as on a machine of its own."""
    if int(os.environ["RANK"]) == chosen.layout.world_size - 1:
        model.find_model_folder = lambda _name, **_: other
    return said_by(GuardError, composed, run, chosen)


@EACH_WAY
def test_ranks_that_read_different_weights_refuse_and_name_the_file(layout, make_job, models, tmp_path) -> None:
    """One element of one weight, which no rank holds twice."""
    other = Path(shutil.copytree(models["untied"], tmp_path / "other"))
    _change(other / "model.safetensors", lambda tensors: tensors[MATRIX][3, 3].add_(0.5))
    for said in run_world(2, _another_folder, prepare_cell(make_job(), tmp_path / "run"), execution(layout), other):
        assert said.startswith("ranks read different models: of model.safetensors, rank 0 has one with hash ")
        assert "; rank 1 has one with hash " in said
        assert "copy one folder to every machine" in said


def _check_layout(built: Build, elements: dict[str, int] | None = None) -> None:
    model = built.model
    checks.check_layout(built.world, model.parameters, ownership=model.ownership, elements=elements or model.elements)


def _read_back(built: Build, pretend: Layout) -> str:
    _check_layout(built)
    object.__setattr__(built.world, "layout", pretend)
    if built.execution.layout.zero_stage == 1:  # of which only the optimizer's states are sharded
        built.step(next(iter(built.batches.from_(0))))
        return said_by(GuardError, built.optimizer.step)
    return said_by(GuardError, _check_layout, built)


def _other_names(built: Build) -> list[str]:
    """As many elements, of other weights: one held twice and one missing, and an unknown one."""
    right = built.model.elements
    twice, missing = "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight"
    swapped = {**right, twice: 2 * right[twice], missing: 0}
    renamed = {name if name != missing else "another": count for name, count in right.items() if name != twice}
    assert sum(swapped.values()) == sum(right.values())
    twice_here = [*built.model.parameters, *built.model.parameters[:1]]
    asked = {"ownership": built.model.ownership, "elements": right}
    doubled = said_by(GuardError, checks.check_layout, built.world, twice_here, **asked)
    assert f"elements of {built.model.parameters[0][0]}, and" in doubled or built.world.layout.pp > 1
    return [said_by(GuardError, _check_layout, built, wrong) for wrong in (swapped, renamed)]


@EACH_WAY
def test_a_weight_that_is_held_for_another_stops_the_run_whatever_the_sum(layout, make_job, tmp_path) -> None:
    twice = r"all ranks together count \d+ elements of model.layers.0.input_layernorm.weight, and the model has \d+"
    for swapped, renamed in run_built(_other_names, prepare_cell(make_job(), tmp_path), execution(layout)):
        assert re.match(twice, swapped)
        assert "elements of another, and the model has" in renamed


def _trains_more(built: Build) -> str:
    """What the plan counts passes; one element more in one rank's adapter does not."""
    planned = take_inventory(built.job, read_model(built.job.model)).trained_elements
    asked, parameters = {"ownership": built.model.ownership, "planned": planned}, built.model.parameters
    checks.check_trained(built.world, parameters, **asked)
    more = [("one", torch.nn.Parameter(torch.zeros(1)))] if built.world.rank == 0 else []
    return said_by(GuardError, checks.check_trained, built.world, [*parameters, *more], **asked)


@EACH_WAY
def test_a_model_that_trains_more_than_the_plan_counts_stops_the_run(layout, make_job, tmp_path) -> None:
    for said in run_built(_trains_more, prepare_cell(make_job("tied", method="lora"), tmp_path), execution(layout)):
        found = re.match(r"all ranks together train (\d+) elements, and the plan counts (\d+)", said)
        assert int(found[1]) == int(found[2]) + 1


def _planned_otherwise(run: RunDirectory, job: Job) -> tuple[str, bool]:
    """The whole worker, by a plan of five elements; whether it came to a step."""
    worker.read_request = lambda _: (job, DDP, parse_hardware("cpu:2"), None, 5)
    journal = Journal(run=run, rank=int(os.environ["RANK"]))
    said = said_by(GuardError, worker._run, run, journal=journal, stop=StopFlag(), watch=Watch(journal, StopFlag()))
    return said, run.metrics.exists()


def test_a_worker_holds_its_model_against_the_plan_before_the_first_step(make_job, tmp_path) -> None:
    job = make_job(method="lora")
    for said, stepped in run_world(2, _planned_otherwise, prepare_cell(job, tmp_path), job):
        assert "elements, and the plan counts 5, so that" in said
        assert not stepped


def _other_rows(built: Build) -> str:
    """The last stage takes its labels from another batch than the first took its tokens from."""
    first, second = itertools.islice(built.batches.from_(0), 2)
    seen = checks.gather(built.world, checksum(first if built.world.rank == 0 else second))
    return said_by(GuardError, checks.check_peers, built.world, first, seen)


def test_peers_that_see_other_rows_are_found(make_job, tmp_path) -> None:
    assert set(run_built(_other_rows, prepare_cell(make_job(), tmp_path), execution(Layout(pp=2)))) == {
        "step 1: rank 0 and rank 1 compute parts of the same forward and see different tokens. Ranks do not see the "
        "samples they should"
    }


@pytest.mark.parametrize(
    ("runs", "asked"),
    [("ddp", "fsdp"), ("fsdp", "ddp"), ("ddp", "tp"), ("ddp", "pp"), ("pp", "ddp"), ("zero1", "ddp")],
)
def test_a_layout_that_is_not_what_runs_stops_the_run(runs, asked, make_job, tmp_path) -> None:
    said = run_built(_read_back, prepare_cell(make_job(), tmp_path), spread(LAYOUTS[runs]), LAYOUTS[asked])[0]
    assert "What was asked is not what runs" in said
    assert ("of the optimizer's exp_avg of " in said) == (runs == "zero1")


def test_what_is_not_trained_is_refused_before_anything_loads(make_job, tmp_path) -> None:
    run, chosen = prepare_cell(make_job(), tmp_path), execution(optimizer="adafactor", offload="optimizer")
    sentence = "optimizer adafactor is not trained with offload; use optimizer: adamw, or offload: none"
    assert sentence in run_world(1, said_by, UnsupportedError, composed, run, chosen)[0]


NORM, MATRIX = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
POINTER, INDEX = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "model.safetensors.index.json"
OUTSIDE = '{"weight_map": {"a": "../secrets.safetensors"}}'
#: What is done to the tensors of a model, and what is said of it.
WRONG: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
    (lambda t: t.pop(NORM), "the weight model.norm.weight is missing"),
    (lambda t: t.update({"model.stray": torch.ones(2)}), "model.stray has no place in this architecture"),
    (lambda t: t[MATRIX].view(-1)[99:100].fill_(math.nan), "model.layers.1.mlp.up_proj.weight holds NaN or infinity"),
    (lambda t: t.update({NORM: t[NORM].long()}), "model.norm.weight is of type I64; expected F64, F32, F16, BF16"),
    (lambda t: t.update({MATRIX: torch.zeros(96, 32)}), "config.json asks for"),
]
#: What is done to the file of its weights, and what is said of it.
BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (lambda file: file.rename(file.with_name("pytorch_model.bin")), "pickled weights can run code and are not read"),
    (lambda file: file.with_name(INDEX).write_text(OUTSIDE), "expected a .safetensors file of the same folder"),
    (lambda file: file.write_bytes(file.read_bytes()[:5000]), "is not a whole safetensors file"),
    (lambda file: file.write_text(POINTER), "is a Git LFS pointer"),
]


def _change(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Changes the tensors of a file."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_a_broken_model_folder_is_refused_with_a_sentence(make_job, models, tmp_path) -> None:
    run, runs = prepare_cell(make_job(), tmp_path / "run"), list[RunDirectory]()
    broken = [(partial(_change, change=change), said) for change, said in WRONG] + BROKEN
    for number, (breaking, _) in enumerate(broken):
        folder = Path(shutil.copytree(models["untied"], tmp_path / str(number)))
        breaking(folder / "model.safetensors")
        runs.append(RunDirectory(Path(shutil.copytree(run.root, folder / "run"))))
        write_json(runs[-1].resolved, make_job(folder).to_json())
    (refused,) = run_world(1, lambda: [said_by(ModelError, composed, run, execution()) for run in runs])
    for one, said, (_, sentence) in zip(runs, refused, broken, strict=True):
        assert sentence in said
        assert re.search(rf"resolved\.yaml:\d+: model: {re.escape(str(one.root.parent))}", said)
