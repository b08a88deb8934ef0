"""Pipelines, tensor parallel, hybrid sharding and products: what each rank holds is the forecast, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.distributed.fsdp import FSDPModule

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.parallel.ownership import local_part
from shardwise.parallel.postponed import groups_of
from shardwise.plan.memory.forecast import holdings_of
from shardwise.plan.memory.inventory import take_inventory
from shardwise.plan.memory.work import work_of
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.memory import held
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world

#: ZeRO-1, whatever stands beside it.
STATES_ONLY: dict[str, Any] = {"zero_stage": 1, "reshard_after_forward": False}
KEPT: dict[str, Any] = {"zero_stage": 2, "reshard_after_forward": False}

LAYOUTS: dict[str, Layout] = {
    "mp": Layout(pp=2, schedule="sequential"),
    "gpipe": Layout(pp=2, schedule="gpipe"),
    "1f1b": Layout(pp=2),
    "interleaved": Layout(pp=2, schedule="interleaved"),
    "zero_bubble": Layout(pp=2, schedule="zero_bubble"),
    "1f1b of 3, uneven": Layout(pp=3),
    "tp": Layout(tp=2),
    "hsdp": Layout(dp_replicate=2, dp_shard=2),
    "hsdp, shards of 3": Layout(dp_replicate=2, dp_shard=3),
    "hsdp of zero1": Layout(dp_replicate=2, dp_shard=2, **STATES_ONLY),
    "hsdp of zero2": Layout(dp_replicate=2, dp_shard=2, **KEPT),
    "fsdp x 1f1b": Layout(pp=2, dp_shard=2),
    "fsdp x gpipe": Layout(pp=2, dp_shard=2, schedule="gpipe"),
    "fsdp x interleaved": Layout(pp=2, dp_shard=2, schedule="interleaved"),
    "zero2 x zero_bubble": Layout(pp=2, dp_shard=2, schedule="zero_bubble", **KEPT),
    "zero1 x 1f1b": Layout(pp=2, dp_shard=2, **STATES_ONLY),
    "ddp x 1f1b": Layout(pp=2, dp_replicate=2),
    "ddp x tp": Layout(tp=2, dp_replicate=2),
    "fsdp x tp": Layout(tp=2, dp_shard=2),
    "zero1 x tp": Layout(tp=2, dp_shard=2, **STATES_ONLY),
    "zero2 x tp": Layout(tp=2, dp_shard=2, **KEPT),
    "tp x 1f1b": Layout(tp=2, pp=2),
    "tp x interleaved": Layout(tp=2, pp=2, schedule="interleaved"),
    "hsdp x tp": Layout(dp_replicate=2, dp_shard=2, tp=2),
    "hsdp x 1f1b": Layout(dp_replicate=2, dp_shard=2, pp=2),
    "fsdp x tp x 1f1b": Layout(dp_shard=2, tp=2, pp=2),
    "ddp x tp x gpipe": Layout(dp_replicate=2, tp=2, pp=2, schedule="gpipe"),
    "zero1 x tp x 1f1b": Layout(dp_shard=2, tp=2, pp=2, **STATES_ONLY),
}


class Bytes(NamedTuple):
    """Of one rank, between steps; gradients as a step's backward leaves them."""

    weights: int
    gradients: int
    optimizer: int


def _held(run: RunDirectory, chosen: Execution) -> Bytes:
    """Read from live tensors, around the first step."""
    built = composed(run, chosen)
    built.step(next(iter(built.batches.from_(0))))
    # FSDP's gradients are views of what it reduced, so that their storages would count more than they are.
    gradients = sum(local_part(p.grad).nbytes for p in built.model.trainable if p.grad is not None)
    built.optimizer.step()
    now = held((p for _, p in built.model.parameters), built.optimizer)
    return Bytes(now.weights, gradients, now.optimizer)


def _forecast(job: Job, chosen: Execution) -> list[Bytes]:
    """Of every rank."""
    shape, layout = read_model(job.model), chosen.layout
    cluster, inventory = parse_hardware(f"cpu:{layout.world_size}"), take_inventory(job, shape)
    work = work_of(job, model=shape, cluster=cluster, execution=chosen, inventory=inventory)
    by_rank = {rank: one for one in holdings_of(work) for rank in one.ranks(layout)}
    assert sorted(by_rank) == list(range(layout.world_size))
    return [Bytes(one.stored, one.gradients, one.optimizer) for _, one in sorted(by_rank.items())]


@pytest.mark.parametrize(("method", "precision"), [("full", "fp32"), ("lora", "mixed")])
@pytest.mark.parametrize("model", ["deep tied", "deep untied"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_of_products_hold_what_is_forecast(
    layout: str, model: str, method: str, precision: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(model, method=method, train={"max_steps": 1, "precision": precision})
    chosen = execution(LAYOUTS[layout], precision=precision, micro_batch_size=1, gradient_accumulation_steps=2)
    assert run_world(chosen.layout.world_size, _held, prepare_cell(job, tmp_path), chosen) == _forecast(job, chosen)


#: Layout -> over how many of four ranks its weights, gradients and optimizer states are shared out between steps.
SHARED_OUT: dict[str, tuple[Layout, tuple[int, int, int]]] = {
    "ddp": (Layout(dp_replicate=4), (1, 1, 1)),
    "zero1": (Layout(dp_shard=4, **STATES_ONLY), (1, 1, 4)),
    "zero2": (Layout(dp_shard=4, **KEPT), (4, 4, 4)),
    "fsdp": (Layout(dp_shard=4), (4, 4, 4)),
    "hsdp": (Layout(dp_replicate=2, dp_shard=2), (2, 2, 2)),
}


@pytest.mark.parametrize("name", SHARED_OUT)
def test_each_stage_of_zero_shares_out_what_it_says(name: str, make_job: Callable[..., Job], tmp_path: Path) -> None:
    """Without the planner: how many copies all ranks hold together, and that none holds more than its share."""
    layout, shares = SHARED_OUT[name]
    job = make_job("untied", train={"max_steps": 1})
    ranks = run_world(4, _held, prepare_cell(job, tmp_path), execution(layout, micro_batch_size=2))
    elements = 4 * read_model(job.model).num_parameters  # bytes of float32
    for what, share in zip(Bytes._fields, shares, strict=True):
        found = [getattr(rank, what) for rank in ranks]
        whole = 2 * elements if what == "optimizer" else elements
        extra = sum(found) - whole * 4 // share
        # AdamW counts steps beside its two moments, in one float for each tensor; FSDP2 keeps shards of weights padded.
        most = {"optimizer": 0.01, "weights": 0.01 if layout.zero_stage > 1 and share > 1 else 0.0, "gradients": 0.0}
        assert 0 <= extra <= most[what] * whole, what
        assert max(found) < 1.03 * whole / share, what


def _whole_blocks(run: RunDirectory, chosen: Execution) -> float:
    """The share of the blocks whose weights are whole on this rank between a forward and its backward."""
    built = composed(run, chosen)
    (root,) = built.model.spread.modules
    blocks = [part._get_fsdp_state() for part in root.modules() if isinstance(part, FSDPModule) and part is not root]
    groups = [group for block in blocks for group in groups_of(block)]
    seen: list[float] = []
    root.register_forward_hook(lambda *_: seen.append(sum(group.is_unsharded for group in groups) / len(groups)))
    built.step(next(iter(built.batches.from_(0))))
    return seen[0]


@pytest.mark.parametrize(("layout", "whole"), [(Layout(dp_shard=2), 0), (Layout(dp_shard=2, **KEPT), 1)])
def test_zero2_keeps_gathered_weights_until_backward_and_fsdp_does_not(
    layout: Layout, whole: float, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    chosen = execution(layout, micro_batch_size=4)
    assert run_world(2, _whole_blocks, prepare_cell(make_job(), tmp_path), chosen) == [whole, whole]
