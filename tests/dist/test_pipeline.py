"""Pipelines: what the support matrix leaves out trains as one process does too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shardwise.parallel import pipeline
from shardwise.parallel.deferred_reduction import _groups
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, composed, execution, must_equal, prepare_cell, spread, train_cell
from tests.dist.worlds import run_world

CELLS: dict[str, Execution] = {
    "mp(2)": spread(Layout(pp=2, schedule="sequential")),
    "zero_bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "mp(3), accumulation 2": spread(Layout(pp=3, schedule="sequential"), micros=2),
    "1f1b(4), 4 micro-batches": spread(Layout(pp=4), micros=4),
    "1f1b(2), fewer micro-batches than ranks": spread(Layout(pp=2)),
    "1f1b(2), recompute": spread(Layout(pp=2), micros=4, gradient_checkpointing="full"),
    # Three addends round by their order: both ends of a tied weight must add them alike.
    "ddp(3) x 1f1b(2)": spread(Layout(dp_replicate=3, pp=2), micros=3),
    "zero1(3) x mp(2)": spread(Layout(dp_shard=3, pp=2, schedule="sequential", **ZERO1), micros=3),
    "hsdp(2 x 2), kept, x zero_bubble(2)": spread(
        Layout(dp_replicate=2, dp_shard=2, pp=2, reshard_after_forward=False, schedule="zero_bubble"), micros=2
    ),
    "zero2(2) x tp(2) x zero_bubble(2)": spread(
        Layout(dp_shard=2, tp=2, pp=2, schedule="zero_bubble", **ZERO2), micros=2
    ),
    "fsdp(2) x interleaved(2)": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4),
    "fsdp(2) x interleaved(2), reduced once": spread(
        Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4, reduce_once=True
    ),
}
FAMILIES = [
    (method, model, cell)
    for method, model in [("full", "gemma3"), ("lora", "gemma3"), ("full", "granite"), ("lora", "phi3")]
    for cell in ("1f1b(4), 4 micro-batches", "fsdp(2) x interleaved(2)")
]
LLAMAS = [(method, model, cell) for cell in CELLS for method, model in (("full", "deep tied"), ("lora", "deep untied"))]


def _must_train_alike(method: str, model: str, cell: str, *, single: Any, make_job: Any, root: Path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    must_equal(single(job), train_cell(job, root, replace(CELLS[cell], optimizer="sgd")))


@pytest.mark.parametrize(("method", "model", "cell"), LLAMAS)
def test_a_pipeline_trains_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    _must_train_alike(method, model, cell, single=single, make_job=make_job, root=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "model", "cell"), FAMILIES)
def test_other_families_train_in_stages_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    _must_train_alike(method, model, cell, single=single, make_job=make_job, root=tmp_path)


def _kept_between(run: RunDirectory, chosen: Execution) -> tuple[set[torch.dtype], int, int]:
    """In which types gradients wait for other micro-batches; elements held in the last of them, and after the step."""
    built = composed(run, chosen)
    (root,) = built.model.spread.modules
    kept: set[torch.dtype] = set()
    held: list[int] = []
    done = pipeline.keep_gradients

    def looked_at(stage: nn.Module) -> None:
        done(stage)
        parameters = [one for group in _groups(root) for one in group.fsdp_params]
        waiting = [one.unsharded_accumulated_grad for one in parameters] + [
            one.unsharded_param.grad for one in parameters
        ]
        kept.update(gradient.dtype for gradient in waiting if gradient is not None)
        held.append(sum(parameter.numel() for parameter in root.parameters()))

    pipeline.keep_gradients = looked_at
    built.step(next(iter(built.batches.from_(0))))
    return kept, held[-1], sum(local_part(parameter).numel() for parameter in root.parameters())


def test_a_cut_backward_of_sharded_weights_sums_in_float32_and_lets_go_of_them_at_the_end(make_job, tmp_path) -> None:
    layout = Layout(dp_shard=2, pp=2, zero_stage=2, reshard_after_forward=False, schedule="zero_bubble")
    chosen = execution(layout, precision="mixed", micro_batch_size=1, gradient_accumulation_steps=4)
    job = make_job("deep untied", train={"precision": "mixed", "max_steps": 1})
    for kept, during, after in run_world(4, _kept_between, prepare_cell(job, tmp_path), chosen):
        assert kept == {torch.float32}
        assert during > 1.9 * after
