"""Every cell of docs/support.md that says it is trained is trained here, as one process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.matrix import METHODS, cells

from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.support import refusal
from tests.dist.cells import Trained, execution, relative, train_cell

TOLERANCE = 1e-5
STEPS = 6

TABLE = [
    pytest.param(method, layout, id=f"{method}-{data} x {split}")
    for data, split, layout in cells()
    for method in METHODS
    if refusal(method=method, layout=layout) is None
]


def job_of(make_job: Callable[..., Job], method: str) -> Job:
    train = {"learning_rate": 0.05, "optimizer": "sgd", "max_steps": STEPS, "max_grad_norm": 0.5}
    return make_job("deep tied", method=method, train=train)


@pytest.fixture(scope="module")
def single(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """One process, the whole global batch in one forward."""
    known: dict[Any, Trained] = {}

    def run(method: str) -> Trained:
        if method not in known:
            root = tmp_path_factory.mktemp("single")
            known[method] = train_cell(job_of(make_job, method), root, execution(optimizer="sgd"))[0]
        return known[method]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("method", "layout"), TABLE)
def test_a_cell_of_the_support_matrix_trains_as_one_process_does(
    method: str, layout: Layout, single: Callable[[str], Trained], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    expected = single(method)
    share = 8 // layout.data_world_size
    chosen = execution(layout, optimizer="sgd", micro_batch_size=1, gradient_accumulation_steps=share)
    ranks = train_cell(job_of(make_job, method), tmp_path, chosen)
    assert len(ranks[0].metrics) == STEPS
    for key in ("loss", "grad_norm"):
        assert relative(expected.series(key), ranks[0].series(key)) <= TOLERANCE
    for exact in ("step", "learning_rate", "tokens", "trained_tokens"):
        assert ranks[0].series(exact) == expected.series(exact)
    held = {name: weight for rank in ranks for name, weight in rank.weights.items()}
    assert held.keys() == expected.weights.keys()
    for rank in ranks:
        assert all(torch.equal(weight, held[name]) for name, weight in rank.weights.items())
    for name, weight in held.items():
        assert torch.allclose(weight, expected.weights[name], rtol=1e-5, atol=1e-6), name
