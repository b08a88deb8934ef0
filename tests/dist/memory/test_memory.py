"""What a rank holds is what its layout says, and what the planner forecast, to the byte."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import read_model
from shardwise.models.built.shape import shape_of
from shardwise.models.weights import Weights
from shardwise.parallel import pipeline, single_stage
from shardwise.parallel.fsdp import groups_of, whole_gradients
from shardwise.parallel.ownership import local_part
from shardwise.plan.answer import make_plan
from shardwise.plan.work.inventory import take_inventory
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.train.build import Build
from shardwise.train.measuring.memory import Allocations, held, highest_by_phase
from tests.dist import cells
from tests.dist.cells import ZERO1, ZERO2, composed, execution, forecast_holdings, prepare_cell, run_built, spread
from tests.dist.worlds import run_world
from tests.marks import CI


class Bytes(NamedTuple):
    """Of one rank, between steps; gradients as a step's backward leaves them."""

    weights: int
    gradients: int
    optimizer: int


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Bytes, of frozen weights too, which have none."""
    return sum(local_part(p.grad).nbytes for p in parameters if p.grad is not None)


def _held(built: Build) -> Bytes:
    """Read from live tensors, around the first step."""
    built.step(next(iter(built.batches.from_(0))))
    # FSDP's gradients are views of what it reduced: their storages would count more.
    gradients = _gradients(p for _, p in built.model.parameters)
    built.optimizer.step()
    now = held((p for _, p in built.model.parameters), built.optimizer)
    return Bytes(now.weights, gradients, now.optimizer)


#: Layouts that are planned by a strategy's name, and the number of processes.
STRATEGIES = [("single", 1), ("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("zero2", 2), ("zero1", 2), ("zero1", 3)]


@pytest.mark.parametrize(("method", "precision"), [("full", "fp32"), ("lora", "mixed"), ("full", "bf16")])
@pytest.mark.parametrize(("layout", "processes"), STRATEGIES)
def test_a_plan_forecasts_what_every_rank_holds(layout, processes, method, precision, make_job, tmp_path) -> None:
    stated = {"layout": layout} if processes > 1 else {}
    job = make_job("tied", method=method, train={"max_steps": 2, "precision": precision}, **stated)
    best = make_plan(job, model=read_model(job.model), cluster=parse_hardware(f"cpu:{processes}")).best
    ranks = run_built(_held, prepare_cell(job, tmp_path), best.execution)
    parts = {rank: group.parts for group in best.memory.ranks for rank in group.ranks}
    for rank, (now, holding) in enumerate(zip(ranks, forecast_holdings(job, best.execution), strict=True)):
        assert (parts[rank]["weights"], parts[rank]["optimizer"]) == (now.weights, now.optimizer)
        assert holding.gradients == now.gradients


LAYOUTS: dict[str, Layout] = {
    **{name: cells.LAYOUTS[name] for name in ("mp", "gpipe", "interleaved", "zero_bubble", "tp", "cp", "hsdp")},
    **{name: cells.LAYOUTS[name] for name in ("fsdp x tp", "fsdp x pp", "zero1 x tp")},
    "1f1b of 3, uneven": Layout(pp=3),
    "fsdp x cp": Layout(dp_shard=2, cp=2),
    "zero1 x cp": Layout(dp_shard=2, cp=2, **ZERO1),
    "hsdp, shards of 3": Layout(dp_replicate=2, dp_shard=3),
    "hsdp of zero1": Layout(dp_replicate=2, dp_shard=2, **ZERO1),
    "hsdp of zero2": Layout(dp_replicate=2, dp_shard=2, **ZERO2),
    "fsdp x interleaved": Layout(pp=2, dp_shard=2, schedule="interleaved"),
    "zero2 x zero_bubble": Layout(pp=2, dp_shard=2, schedule="zero_bubble", **ZERO2),
    "zero1 x 1f1b": Layout(pp=2, dp_shard=2, **ZERO1),
    "ddp x 1f1b": Layout(pp=2, dp_replicate=2),
    "ddp x tp": Layout(tp=2, dp_replicate=2),
    "tp x 1f1b": Layout(tp=2, pp=2),
    "hsdp x tp": Layout(dp_replicate=2, dp_shard=2, tp=2),
    "hsdp x 1f1b": Layout(dp_replicate=2, dp_shard=2, pp=2),
    "fsdp x tp x 1f1b": Layout(dp_shard=2, tp=2, pp=2),
    "zero1 x tp x 1f1b": Layout(dp_shard=2, tp=2, pp=2, **ZERO1),
}


def must_be_forecast(job: Job, chosen: Execution, root: Path) -> list[Bytes]:
    """What ranks hold, as the planner says of the model as it is read, or else built."""
    ranks = run_built(_held, prepare_cell(job, root), chosen)
    forecast = forecast_holdings(job, chosen, model=shape_of(job.model))
    assert ranks == [Bytes(one.stored, one.gradients, one.optimizer) for one in forecast]
    return ranks


@pytest.mark.parametrize(
    ("method", "model", "precision"),
    [("full", "deep tied", "fp32"), ("full", "olmo2", "bf16"), ("lora", "phi3", "mixed")],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_of_products_hold_what_is_forecast(layout, model, method, precision, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train={"max_steps": 1, "precision": precision})
    must_be_forecast(job, spread(LAYOUTS[layout], micros=2, precision=precision), tmp_path)


#: Magnitudes, and copies of both ends, of norms and of matrices.
BESIDE: list[dict[str, Any]] = [
    {"use_dora": True},
    {"modules_to_save": ["embed_tokens", "lm_head"]},
    {"modules_to_save": ["norm", "q_proj", "mlp"]},
    {"use_dora": True, "modules_to_save": ["embed_tokens", "lm_head", "norm", "q_proj", "down_proj"]},
]


@pytest.mark.parametrize("layout", [Layout(dp_shard=2), Layout(tp=2), Layout(pp=2, tp=2)], ids=str)
@pytest.mark.parametrize("asked", BESIDE, ids=str)
def test_magnitudes_and_whole_copies_are_forecast_exactly(asked, layout, make_job, tmp_path) -> None:
    job = make_job("tied", method="lora", lora={"r": 4, **asked}, train={"max_steps": 1, "precision": "mixed"})
    must_be_forecast(job, spread(layout, micros=2, precision="mixed"), tmp_path)


#: Layout -> over how many of four ranks weights, gradients and optimizer states are shared out.
SHARED_OUT: dict[str, tuple[Layout, tuple[int, int, int]]] = {
    "ddp": (Layout(dp_replicate=4), (1, 1, 1)),
    "zero1": (Layout(dp_shard=4, **ZERO1), (1, 1, 4)),
    "zero2": (Layout(dp_shard=4, **ZERO2), (4, 4, 4)),
    "fsdp": (Layout(dp_shard=4), (4, 4, 4)),
    "hsdp": (Layout(dp_replicate=2, dp_shard=2), (2, 2, 2)),
    "over cp": (Layout(dp_shard=2, cp=2), (4, 4, 4)),
    "over cp, whole": (Layout(dp_shard=2, cp=2, shard_over_cp=False), (2, 2, 2)),
}


@pytest.mark.parametrize("name", [pytest.param(k, marks=CI if k in ("fsdp", "over cp") else ()) for k in SHARED_OUT])
def test_each_layout_shares_out_what_it_says(name, make_job, tmp_path) -> None:
    """Without the planner: copies of all ranks together, and none holds more than its share."""
    layout, shares = SHARED_OUT[name]
    job = make_job("untied", train={"max_steps": 1})
    ranks = run_built(_held, prepare_cell(job, tmp_path), spread(layout))
    weights = 4 * read_model(job.model).num_parameters  # bytes of float32
    for what, share in zip(Bytes._fields, shares, strict=True):
        found, whole = [getattr(rank, what) for rank in ranks], 2 * weights if what == "optimizer" else weights
        extra = sum(found) - whole * 4 // share
        # AdamW counts steps in one float for each tensor; FSDP2 pads shards of weights.
        most = {"optimizer": 0.01, "weights": 0.01 if layout.zero_stage > 1 and share > 1 else 0.0, "gradients": 0.0}
        assert 0 <= extra <= most[what] * whole, what
        assert max(found) < 1.03 * whole / share, what


def _whole_blocks(built: Build) -> float:
    """The share of blocks whose weights are whole here between a forward and its backward."""
    (root,) = built.model.spread.modules
    named = ((name.rpartition(".")[2], part) for name, part in root.named_modules() if isinstance(part, FSDPModule))
    blocks = [part._get_fsdp_state() for end, part in named if end.isdigit()]
    groups = [group for block in blocks for group in groups_of(block)]
    seen: list[float] = []
    root.register_forward_hook(lambda *_: seen.append(sum(group.is_unsharded for group in groups) / len(groups)))
    built.step(next(iter(built.batches.from_(0))))
    return seen[0]


@pytest.mark.parametrize(("layout", "whole"), [(Layout(dp_shard=2), 0), (Layout(dp_shard=2, **ZERO2), 1)])
def test_zero2_keeps_gathered_weights_until_backward_and_fsdp_does_not(layout, whole, make_job, tmp_path) -> None:
    assert run_built(_whole_blocks, prepare_cell(make_job(), tmp_path), spread(layout)) == [whole, whole]


def _peaks_of_steps(built: Build) -> tuple[list[int], int]:
    """What each step takes above what was there before; and the bytes of all gradients."""
    peaks: list[int] = []
    for batch in built.batches.from_(0):
        with Allocations(profile_memory=True) as profiler:
            built.step(batch)
        peaks.append(max(highest_by_phase(profiler).values()))
        built.optimizer.step()
        built.optimizer.zero_grad()
    return peaks, sum(local_part(p).nbytes for p in built.model.trainable)


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=2, **ZERO1)])
def test_what_accumulates_in_buckets_is_there_once(layout, make_job, tmp_path) -> None:
    """Rows are cut, so that micro-batches are alike: several need no more than one."""
    peaks, gradients = list[list[int]](), 0
    for count in (1, 3):
        data, train = {"over_long": "truncate", "max_length": 40}, {"max_steps": 3, "global_batch_size": 2 * count}
        run = prepare_cell(make_job(data=data, train=train), tmp_path / str(count))
        chosen = execution(layout, micro_batch_size=1, gradient_accumulation_steps=count)
        found, gradients = run_built(_peaks_of_steps, run, chosen)[0]
        peaks.append(found)
    for once, several in zip(*peaks, strict=True):
        assert several - once < 0.1 * gradients


def _kept_until_the_last(built: Build) -> tuple[set[torch.dtype], int, int, int]:
    """Types and bytes of whole gradients before the last backward; of shards then and after."""
    (root,) = built.model.spread.modules
    told, kept, shards = single_stage.reduce_at_last, list[torch.Tensor](), list[int]()

    def looked_at(module: Any, execution: Execution, *, last: bool) -> None:
        told(module, execution, last=last)
        if last:
            kept.extend(local_part(gradient) for gradient in whole_gradients(root))
            shards.append(_gradients(built.model.trainable))

    single_stage.reduce_at_last = looked_at
    built.step(next(iter(built.batches.from_(0))))
    whole = sum(gradient.nbytes for gradient in kept)
    return {gradient.dtype for gradient in kept}, whole, shards[0], _gradients(built.model.trainable)


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_gradients_that_are_reduced_once_are_whole_in_float32_until_then(method, precision, make_job, tmp_path) -> None:
    """As forecast, and no shards beside them."""
    job = make_job("deep tied", method=method, train={"max_steps": 1, "precision": precision})
    chosen = spread(Layout(dp_shard=2), micros=4, precision=precision, reduce_once=True)
    forecast = take_inventory(job, read_model(job.model)).trained_elements
    for types, whole, shards, after in run_built(_kept_until_the_last, prepare_cell(job, tmp_path), chosen):
        assert types == {torch.float32}
        assert (whole, shards) == (4 * forecast, 0)
        assert after <= 0.6 * whole


def _kept_between(built: Build) -> tuple[set[torch.dtype], int, int]:
    """Types of gradients that wait for other micro-batches; elements held in the last and after."""
    (root,) = built.model.spread.modules
    kept, held, done = set[torch.dtype](), list[int](), pipeline.keep_gradients

    def looked_at(stage: torch.nn.Module) -> None:
        done(stage)
        kept.update(gradient.dtype for gradient in whole_gradients(root))
        held.append(sum(parameter.numel() for parameter in root.parameters()))

    pipeline.keep_gradients = looked_at
    built.step(next(iter(built.batches.from_(0))))
    return kept, held[-1], sum(local_part(parameter).numel() for parameter in root.parameters())


def test_a_cut_backward_of_sharded_weights_sums_in_float32_and_lets_go_of_them_at_the_end(make_job, tmp_path) -> None:
    chosen = spread(LAYOUTS["zero2 x zero_bubble"], micros=4, precision="mixed")
    job = make_job("deep untied", train={"precision": "mixed", "max_steps": 1})
    for kept, during, after in run_built(_kept_between, prepare_cell(job, tmp_path), chosen):
        assert kept == {torch.float32}
        assert during > 1.9 * after


def _loaded_elements(run: RunDirectory, chosen: Execution) -> int:
    """Elements this rank read from safetensors while it loaded."""
    read, elements = Weights.read, list[int]()

    def counting(self: Weights, name: str, *, offsets: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
        part = read(self, name, offsets=offsets, lengths=lengths)
        elements.append(part.numel())
        return part

    Weights.read = counting  # type: ignore[method-assign]
    composed(run, chosen)
    return sum(elements)


def test_each_rank_reads_only_its_slices(make_job, models, tmp_path) -> None:
    read = run_world(4, _loaded_elements, prepare_cell(make_job(), tmp_path), spread(Layout(dp_shard=4)))
    assert sum(read) == read_model(str(models["untied"])).num_parameters
    assert max(read) < 0.27 * sum(read)
