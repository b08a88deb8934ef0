"""Every cell of docs/support.md that says it is trained is trained here as one process does."""

import pytest
from tools.matrix import METHODS, cells

from shardwise.spec.support.trained import refusal
from tests.dist.cells import must_equal, spread, train_cell

#: Of each layout one method trains a tied model and the other an untied one, by turns.
MODELS = ("deep tied", "deep untied")
#: Of which slices cut no quantised blocks.
WIDE = "deep wide"
TABLE = [
    pytest.param(
        *(method, WIDE if method == "qlora" else MODELS[(row + column) % 2], layout), id=f"{method}-{data} x {split}"
    )
    for row, (data, split, layout) in enumerate(cells())
    for column, method in enumerate(METHODS)
    if refusal(method=method, layout=layout) is None
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "model", "layout"), TABLE)
def test_a_cell_of_the_support_matrix_trains_as_one_process_does(
    method, model, layout, single, make_job, tmp_path
) -> None:
    job = make_job(model, method=method, train={"learning_rate": 0.05, "optimizer": "sgd", "max_grad_norm": 0.5})
    # Slices exchange most, and take most of the time: they get larger micro-batches.
    micros = 8 // layout.data_world_size // (2 if layout.tp > 1 and layout.data_world_size < 4 else 1)
    must_equal(single(job), train_cell(job, tmp_path, spread(layout, micros=micros, optimizer="sgd")))
