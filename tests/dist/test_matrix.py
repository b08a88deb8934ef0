"""Every cell of docs/support.md that says it is trained is trained here, tied and untied, as one process does"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.matrix import METHODS, cells

from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.support import refusal
from tests.dist.cells import Trained, execution, must_equal, train_cell

STEPS = 20

TABLE = [
    pytest.param(method, layout, id=f"{method}-{data} x {split}")
    for data, split, layout in cells()
    for method in METHODS
    if refusal(method=method, layout=layout) is None
]


def job_of(make_job: Callable[..., Job], method: str, model: str) -> Job:
    train = {"learning_rate": 0.05, "optimizer": "sgd", "max_steps": STEPS, "max_grad_norm": 0.5}
    return make_job(model, method=method, train=train)


@pytest.fixture(scope="module")
def single(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """One process, the whole global batch in one forward."""
    known: dict[Any, Trained] = {}

    def run(*asked: str) -> Trained:
        if asked not in known:
            root = tmp_path_factory.mktemp("single")
            known[asked] = train_cell(job_of(make_job, *asked), root, execution(optimizer="sgd"))[0]
        return known[asked]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("method", "layout"), TABLE)
@pytest.mark.parametrize("model", ["deep tied", "deep untied"])
def test_a_cell_of_the_support_matrix_trains_as_one_process_does(
    method: str,
    layout: Layout,
    model: str,
    single: Callable[..., Trained],
    make_job: Callable[..., Job],
    tmp_path: Path,
) -> None:
    share = 8 // layout.data_world_size
    micro = 2 if layout.tp > 1 and share > 2 else 1  # slices exchange most, and take most of the time
    chosen = execution(layout, optimizer="sgd", micro_batch_size=micro, gradient_accumulation_steps=share // micro)
    ranks = train_cell(job_of(make_job, method, model), tmp_path, chosen)
    assert len(ranks[0].metrics) == STEPS
    must_equal(single(method, model), ranks)
