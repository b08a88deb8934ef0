"""Copies that differ in any weight, trained or frozen, stop the run on every rank alike."""

import random

import pytest
import torch
from torch import nn

from shardwise.catalog.gpus import parse_hardware
from shardwise.parallel.ownership import local_part
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train import worker
from shardwise.train.build import Build
from shardwise.train.guards import checks
from shardwise.train.guards.checks import GuardError, check_replicas, part_hashes
from shardwise.train.saving.checkpoint import Checkpoints
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag, Watch
from tests.dist.cells import LAYOUTS, ZERO1, prepare_cell, run_built, spread, train_on
from tests.dist.worlds import run_world, said_by

DDP = spread(Layout(dp_replicate=2))


def _hash(tensor: torch.Tensor) -> int:
    (value,) = part_hashes([("weight", nn.Parameter(tensor, requires_grad=False))]).values()
    return value


@pytest.mark.parametrize(
    ("chunk", "dtype"), [(7, torch.uint8), (7, torch.bfloat16), (2**20, torch.float32), (7, torch.float64)]
)
def test_a_changed_word_or_two_that_changed_places_change_the_hash(dtype, chunk, monkeypatch) -> None:
    monkeypatch.setattr(checks, "CHUNK_WORDS", chunk)
    draw = random.Random(0)
    tensor = torch.arange(60).to(dtype).view(6, 10)
    known = _hash(tensor)
    assert _hash(tensor.clone()) == known
    assert _hash(tensor.t().contiguous().t()) == known, "a hash is of values in their order, however they are stored"
    for _ in range(200):
        one, other = draw.sample(range(60), 2)
        swapped, changed = (tensor.clone().view(-1) for _ in range(2))
        swapped[[one, other]] = swapped[[other, one]]
        changed[one] += 64
        assert known not in (_hash(swapped.view(6, 10)), _hash(changed.view(6, 10)))


def test_changes_that_cancel_in_a_sum_change_the_hash() -> None:
    tensor = torch.zeros(100, dtype=torch.float32)
    flipped = tensor.clone()
    flipped[[3, 70]] = -0.0  # two highest bits, which add up to nothing in 32 bits
    assert _hash(flipped) != _hash(tensor)
    bent = tensor.view(torch.int32).clone()
    bent[[10, 12]], bent[11] = 5, -10  # nor does a sum weighted by place see it
    assert _hash(bent) != _hash(tensor.view(torch.int32))


def _swap(parameter: torch.Tensor) -> None:
    """Changes the places of two elements: every plain sum stays."""
    flat = local_part(parameter).view(-1)
    flat[:2] = flat[:2].flip(0).clone()


def _said_of_trained(built: Build, name: str) -> str:
    check_replicas(built.world, built.model.parameters, when="at the start")
    if built.world.rank == built.world.size - 1:
        with torch.no_grad():
            dict(built.model.parameters)[name].view(-1)[0] += 1e-6
    return said_by(GuardError, check_replicas, built.world, built.model.parameters, when="after step 3")


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=3, **ZERO1), Layout(pp=2)], ids=str)
def test_trained_copies_that_drift_apart_stop_the_run(layout, make_job, tmp_path) -> None:
    """Replicas, whole weights under ZeRO-1, and both copies of a tied weight in a pipeline."""
    name = "model.embed_tokens.weight"
    for said in run_built(_said_of_trained, prepare_cell(make_job("tied"), tmp_path), spread(layout, micros=2), name):
        assert said.startswith("after step 3: rank 0 and rank ")
        assert f"different trained weights in {name}" in said
        assert "each would train its own model" in said


def _frozen(built: Build) -> tuple[str, nn.Parameter]:
    return next((name, p) for name, p in built.model.parameters if not p.requires_grad and p.ndim > 1)


def _said_of_frozen(built: Build) -> tuple[str, str]:
    check_replicas(built.world, built.model.parameters, when="at the start")
    name, parameter = _frozen(built)
    if built.world.rank == built.world.size - 1:
        _swap(parameter)
    check_replicas(built.world, built.model.trained, when="after step 200")
    return said_by(GuardError, check_replicas, built.world, built.model.parameters, when="after step 3"), name


@pytest.mark.parametrize("chosen", [DDP, spread(LAYOUTS["hsdp"])], ids=["ddp", "hsdp"])
def test_frozen_weights_that_differ_stop_the_run_on_every_rank_with_one_sentence(chosen, make_job, tmp_path) -> None:
    ranks = run_built(_said_of_frozen, prepare_cell(make_job(method="lora"), tmp_path), chosen)
    ((said, name),) = set(ranks)
    assert said.startswith(f"after step 3: rank {len(ranks) // 2 - 1} and rank {len(ranks) - 1} hold")
    assert f"different frozen weights in {name}, though they are replicas" in said


def _trains_with_other_frozen_weights(built: Build) -> tuple[str, bool]:
    if built.world.rank == 1:
        _swap(_frozen(built)[1])
    return said_by(GuardError, train_on, built), any(built.checkpoints.run.checkpoints())


def test_nothing_is_saved_of_copies_whose_frozen_weights_differ(make_job, tmp_path) -> None:
    run = prepare_cell(make_job(method="lora"), tmp_path)
    for said, saved in run_built(_trains_with_other_frozen_weights, run, DDP):
        assert "different frozen weights" in said
        assert not saved


def _restored_differently(run: RunDirectory, job: Job) -> str:
    """A restore that gives rank 1 another weight: the check at the start must come behind it."""
    restore = Checkpoints.restore

    def wrong(checkpoints: Checkpoints) -> int:
        step = restore(checkpoints)
        if checkpoints.world.rank == 1:
            _swap(checkpoints.parameters[0][1])
        return step

    Checkpoints.restore = wrong
    worker.read_request = lambda _: (job, DDP, parse_hardware("cpu:2"), None, None)
    journal = Journal(run=run, rank=0)
    return said_by(GuardError, worker._run, run, journal=journal, stop=StopFlag(), watch=Watch(journal, StopFlag()))


def test_copies_that_were_restored_differently_stop_before_the_first_step(make_job, tmp_path) -> None:
    job = make_job()
    for said in run_world(2, _restored_differently, prepare_cell(job, tmp_path), job):
        assert said.startswith("at the start: rank 0 and rank 1 hold different trained weights in ")
