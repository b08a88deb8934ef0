"""Optimizers of a loop of one's own: those that would train nothing, or parts otherwise than wholes, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch

import shardwise
from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from tests.dist.test_own_loop import batches, model_of, must_be_saved_the_same
from tests.dist.worlds import run_world, said_by, toy_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_model(tmp_path_factory.mktemp("optimizers") / "model", num_hidden_layers=4)


def _of_nothing(folder: Path) -> dict[str, str]:
    """Optimizers that hold no parameter of the parallelized model."""
    given = model_of(folder, None)
    before = torch.optim.AdamW(given.parameters())
    model = shardwise.parallelize(given, "fsdp")
    emptied = torch.optim.SGD(given.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    first, second = batches()[:2]
    model.step(first)
    said = {"before": said_by(UnsupportedError, before.step), "emptied": said_by(UnsupportedError, emptied.step)}
    model.zero_grad()
    model.step(first)  # a loop may leave an update out
    other.step()
    model.zero_grad()
    said["other"] = said_by(UnsupportedError, model.step, second)
    with torch.no_grad():
        next(model.parameters()).add_(0.1)  # as an optimizer of copies does, which are written back by hand
    model.step(second)
    return said


def test_an_optimizer_that_holds_nothing_of_the_model_is_refused_with_the_cause(folder) -> None:
    for said in run_world(2, _of_nothing, folder):
        assert said["before"].startswith("AdamW holds parameters of the model that parallelize was given")
        assert said["emptied"].startswith("SGD holds parameters of the model that parallelize was given")
        assert "make the optimizer after parallelize, over model.parameters()" in said["before"]
        assert said["other"].startswith("SGD was stepped, but it holds no parameter of the parallelized model")


#: By name; each may hold matrices alone.
BY_WEIGHT: dict[str, Any] = {
    "Adafactor": lambda matrices: torch.optim.Adafactor(matrices, lr=0.01),
    "Muon": lambda matrices: torch.optim.Muon(matrices, lr=0.01),
    "AdamW8bit": lambda matrices: bitsandbytes.optim.AdamW8bit(matrices, lr=0.01, eps=1e-5),
}


def _refused(folder: Path, layout: Layout) -> list[str]:
    model = shardwise.parallelize(model_of(folder, None), layout)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    before = [p.detach().clone() for p in matrices]
    model.step(batches()[0])
    said = [said_by(UnsupportedError, make(matrices).step) for make in BY_WEIGHT.values()]
    assert all(torch.equal(*pair) for pair in zip(before, matrices, strict=True))
    return said


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp_shard=2),
        pytest.param(Layout(tp=2), marks=pytest.mark.slow),
        pytest.param(Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False), marks=pytest.mark.slow),
    ],
    ids=lambda layout: layout.strategy,
)
def test_an_optimizer_that_steps_whole_weights_is_refused_before_it_steps_parts(folder, layout) -> None:
    for found in run_world(2, _refused, folder, layout):
        for name, said in zip(BY_WEIGHT, found, strict=True):
            assert said.startswith(f"{name} does not step element by element")
            assert f"which other ranks hold here ({layout.strategy})" in said


def _trained(folder: Path, saved: Path, layout: Layout | None) -> None:
    model = model_of(folder, None)
    model = model if layout is None else shardwise.parallelize(model, layout)
    matrices = BY_WEIGHT["Adafactor"]([p for p in model.parameters() if p.ndim == 2])
    others = torch.optim.SGD([p for p in model.parameters() if p.ndim < 2], lr=0.01)
    for batch in batches()[:2]:
        model.step(batch) if layout else model(**batch).loss.backward()
        for optimizer in (matrices, others):
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(saved)


@pytest.mark.parametrize(
    "layout",
    [Layout(pp=2), pytest.param(Layout(dp_replicate=2), marks=pytest.mark.slow)],
    ids=lambda layout: layout.strategy,
)
def test_where_ranks_hold_whole_weights_it_trains_as_on_one_process(folder, tmp_path, layout) -> None:
    run_world(1, _trained, folder, tmp_path / "plain", None)
    run_world(2, _trained, folder, tmp_path / "spread", layout)
    must_be_saved_the_same(folder, tmp_path)
