"""What a rank holds is what its layout says, and what the planner forecast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.autograd.profiler import profile
from torch.distributed.tensor import DTensor

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.plan.answer import make_plan
from shardwise.plan.memory.forecast import holdings_of
from shardwise.plan.memory.inventory import take_inventory
from shardwise.plan.memory.persistent import Holding
from shardwise.plan.memory.work import work_of
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.plan import Candidate
from shardwise.spec.run import RunDirectory
from shardwise.train.journal import Journal
from shardwise.train.loop import train
from shardwise.train.memory import Allocations, Held, _highest, held
from shardwise.train.signals import StopFlag
from shardwise.train.worker import held_gradients
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world


def _held(run: RunDirectory, chosen: Execution) -> tuple[Held, int, int]:
    built = composed(run, chosen)
    train(built, start=0, journal=Journal(run=run, rank=built.world.rank), stop=StopFlag())
    now = held((p for _, p in built.model.parameters), built.optimizer)
    return now, held_gradients(built), built.meter.peak_bytes


def _holdings(job: Job, chosen: Execution) -> tuple[Holding, ...]:
    model, cluster = read_model(job.model), parse_hardware(f"cpu:{chosen.layout.world_size}")
    work = work_of(job, model=model, cluster=cluster, execution=chosen, inventory=take_inventory(job, model))
    return holdings_of(work)


def _forecast(job: Job, layout: str, processes: int) -> Candidate:
    asked = job.model_copy(update={"layout": layout if processes > 1 else "auto"})
    plan = make_plan(asked, model=read_model(job.model), cluster=parse_hardware(f"cpu:{processes}"))
    assert plan.best is not None
    return plan.best


CASES = [("single", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("zero2", 2), ("zero1", 2), ("zero1", 3)]


@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(("layout", "processes"), CASES)
def test_persistent_bytes_of_every_rank_are_forecast_exactly(
    layout: str, processes: int, method: str, precision: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job("tied", method=method, train={"max_steps": 2, "precision": precision})
    candidate = _forecast(job, layout, processes)
    ranks = run_world(processes, _held, prepare_cell(job, tmp_path), candidate.execution)
    forecast = {rank: group.parts for group in candidate.memory.ranks for rank in group.ranks}
    holding = {shard: held for held in _holdings(job, candidate.execution) for shard in held.shards}
    for rank, (now, gradients, _) in enumerate(ranks):
        assert forecast[rank]["weights"] == now.weights
        assert forecast[rank]["optimizer"] == now.optimizer
        # At the peak some gradients may be yet to come; after backward all are there.
        assert holding[candidate.execution.layout.coordinates(rank).dp_shard].gradients == gradients


@pytest.mark.parametrize("model", ["untied", "tied"])
@pytest.mark.parametrize(
    "setting",
    [
        {"use_dora": True},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"modules_to_save": ["norm", "q_proj", "mlp"]},
    ],
)
def test_magnitudes_and_whole_copies_are_forecast_exactly(
    setting: dict[str, object], model: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job(model, method="lora", lora={"r": 4, **setting}, train={"max_steps": 2, "precision": "mixed"})
    candidate = _forecast(job, "fsdp", 2)
    ranks = run_world(2, _held, prepare_cell(job, tmp_path), candidate.execution)
    forecast = {rank: group.parts for group in candidate.memory.ranks for rank in group.ranks}
    for rank, (now, _, _) in enumerate(ranks):
        assert (forecast[rank]["weights"], forecast[rank]["optimizer"]) == (now.weights, now.optimizer)


SLICED = {
    "tp(2)": execution(Layout(tp=2)),
    "fsdp(2) x tp(2)": execution(Layout(dp_shard=2, tp=2), micro_batch_size=4),
    "1f1b(2) x tp(2)": execution(Layout(pp=2, tp=2), micro_batch_size=4, gradient_accumulation_steps=2),
}


#: Copies of both ends, of every norm and of matrices, and magnitudes.
BESIDE = {"r": 4, "use_dora": True, "modules_to_save": ["embed_tokens", "lm_head", "norm", "q_proj", "down_proj"]}
ASKED: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "dora and copies": {"method": "lora", "lora": BESIDE},
}


@pytest.mark.parametrize("cell", SLICED)
@pytest.mark.parametrize("method", ASKED)
def test_what_ranks_hold_of_slices_is_forecast_exactly(
    method: str, cell: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job, chosen = make_job("tied", train={"max_steps": 2}, **ASKED[method]), SLICED[cell]
    ranks = run_world(chosen.layout.world_size, _held, prepare_cell(job, tmp_path), chosen)
    forecast = {rank: holding for holding in _holdings(job, chosen) for rank in holding.ranks(chosen.layout)}
    assert sorted(forecast) == list(range(chosen.layout.world_size))
    for rank, (now, gradients, _) in enumerate(ranks):
        holding = forecast[rank]
        assert (holding.stored, holding.gradients, holding.optimizer) == (now.weights, gradients, now.optimizer)


def _peaks_of_steps(run: RunDirectory, chosen: Execution) -> tuple[list[int], int]:
    """Of the forwards and backwards of each step, above what was there before; and the bytes of all gradients."""
    built, peaks = composed(run, chosen), list[int]()
    for batch in built.batches.from_(0):
        with Allocations(profile_memory=True) as profiler:
            built.step(batch)
        peaks.append(_highest(profiler))
        built.optimizer.step()
        built.optimizer.zero_grad()
    return peaks, held_gradients(built)


@pytest.mark.parametrize(
    "layout", [Layout(dp_replicate=2), Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False)]
)
def test_what_accumulates_in_buckets_is_there_once(
    layout: Layout, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Rows are cut, so that a micro-batch is as large as another: several of them need no more than one."""
    peaks: list[list[int]] = []
    gradients = 0
    for count in (1, 3):
        data, train = {"over_long": "truncate", "max_length": 40}, {"max_steps": 3, "global_batch_size": 2 * count}
        run = prepare_cell(make_job(data=data, train=train), tmp_path / str(count))
        chosen = execution(layout, micro_batch_size=1, gradient_accumulation_steps=count)
        found, gradients = run_world(2, _peaks_of_steps, run, chosen)[0]
        peaks.append(found)
    for once, several in zip(*peaks, strict=True):
        assert several - once < 0.1 * gradients


def _shapes(run: RunDirectory, chosen: Execution) -> list[tuple[str, bool, bool]]:
    built = composed(run, chosen)
    batch = next(iter(built.batches.from_(0)))
    built.step(batch)
    return [(name, isinstance(p, DTensor), p.grad is not None) for name, p in built.model.parameters]


def test_frozen_weights_never_get_a_gradient(make_job: Callable[..., Job], tmp_path: Path) -> None:
    chosen = execution(Layout(dp_shard=2), micro_batch_size=4)
    for name, sharded, has_gradient in run_world(2, _shapes, prepare_cell(make_job(method="lora"), tmp_path), chosen)[
        0
    ]:
        assert sharded
        assert has_gradient == (".lora_" in name)


def _loaded_elements(run: RunDirectory, chosen: Execution) -> int:
    """Elements this rank read from safetensors while it loaded."""
    from shardwise.models.weights import Weights

    read = Weights.read
    elements: list[int] = []

    def counting(self: Weights, name: str, *, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
        part = read(self, name, offsets=offsets, lengths=lengths)
        elements.append(part.numel())
        return part

    Weights.read = counting  # type: ignore[method-assign]
    composed(run, chosen)
    return sum(elements)


def test_each_rank_reads_only_its_slices(make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path) -> None:
    chosen = execution(Layout(dp_shard=4), micro_batch_size=2)
    read = run_world(4, _loaded_elements, prepare_cell(make_job(), tmp_path), chosen)
    assert sum(read) == read_model(str(models["untied"])).num_parameters
    assert max(read) < 0.27 * sum(read)


def _recorded(kind: type[profile]) -> tuple[set[str], int]:
    dist.init_process_group("gloo")
    with kind(profile_memory=True) as profiler:
        kept = [torch.ones(1000) for _ in range(3)]
        works = [dist.all_reduce(one, async_op=True) for one in kept]
        for work in works:
            assert work is not None
            work.wait()
        with torch.profiler.record_function("named"):
            torch.ones(500).sum()
    assert profiler.kineto_results is not None
    return {event.name() for event in profiler.kineto_results.events()}, _highest(profiler)


def test_nothing_but_memory_is_recorded_and_that_is_what_a_whole_profile_has() -> None:
    """Threads of gloo tell the profiler where collectives end; it may have given up by then what it wrote down."""
    for (names, highest), (every, whole) in zip(
        run_world(2, _recorded, Allocations), run_world(2, _recorded, profile), strict=True
    ):
        assert names == {"[memory]"}
        assert {"gloo:all_reduce", "named", "[memory]"} <= every
        assert highest == whole
