"""Offload to the host: the same training, the places asked for, the bytes that are forecast."""

from collections.abc import Iterable, Iterator

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from shardwise.parallel.fsdp import groups_of
from shardwise.parallel.optimizer.stepped import LocalParts, Stepped
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.train.build import Build
from shardwise.train.guards.checks import GuardError
from shardwise.train.guards.read_back import read_back_places
from tests.dist import cells
from tests.dist.cells import forecast_holdings, move, prepare_cell, run_built, spread, train_cell, train_on
from tests.dist.compare import must_be_the_same, must_record_the_same
from tests.dist.worlds import said_by

FSDP, HSDP = Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)
ZERO1_OF_3 = Layout(dp_shard=3, **cells.ZERO1)

CELLS: dict[str, Execution] = {
    "optimizer, single": spread(offload="optimizer"),
    "optimizer, ddp(2)": spread(Layout(dp_replicate=2), offload="optimizer"),
    "optimizer, zero1(3), uneven": spread(ZERO1_OF_3, micros=2, offload="optimizer"),
    "optimizer, zero1(2) x tp(2)": spread(Layout(dp_shard=2, tp=2, **cells.ZERO1), offload="optimizer"),
    "optimizer, fsdp(2)": spread(FSDP, offload="optimizer"),
    "optimizer, 1f1b(2)": spread(Layout(pp=2), micros=2, offload="optimizer"),
    "parameters, single, accumulation 2": spread(micros=2, offload="parameters"),
    "parameters, ddp(2)": spread(Layout(dp_replicate=2), offload="parameters"),
    "parameters, fsdp(2), accumulation 2": spread(FSDP, micros=2, offload="parameters"),
    "parameters, zero2(2)": spread(Layout(dp_shard=2, **cells.ZERO2), offload="parameters"),
    "parameters, hsdp(2 x 2)": spread(HSDP, offload="parameters"),
    "parameters, tp(2)": spread(Layout(tp=2), offload="parameters"),
    "parameters, fsdp(2) x 1f1b(2)": spread(Layout(pp=2, dp_shard=2), micros=2, offload="parameters"),
    "parameters, fsdp(2) x tp(2)": spread(Layout(dp_shard=2, tp=2), offload="parameters"),
    "all, fsdp(2), recompute": spread(FSDP, gradient_checkpointing="full", offload="all"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), cells.PAIRS)
def test_offload_trains_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=cells.OPTIMIZERS["adamw"])
    expected, found = single(job), train_cell(job, tmp_path, CELLS[cell])[0]
    must_record_the_same(expected, found)
    if CELLS[cell].layout.pp == 1:
        assert found.frozen == expected.frozen


def _places(built: Build, pretend: Execution, device: str) -> str:
    """How a build is stopped that is taken for another execution on another device."""
    steps, parameters = built.checkpoints.stepped, built.model.parameters
    asked = {"execution": pretend, "device": torch.device(device)}
    return said_by(GuardError, read_back_places, built.optimizer, parameters, steps, **asked)


@pytest.mark.parametrize(
    ("chosen", "pretend", "device", "sentence"),
    [
        ("parameters", "none", "cuda", "lies in the memory of cpu; train.offload is none, which puts it into that of"),
        ("parameters", "optimizer", "cuda", "the weight model.embed_tokens.weight lies in the memory of cpu"),
        ("none", "optimizer", "cpu", "the optimizer steps model.embed_tokens.weight itself and no copy of it"),
    ],
)
def test_an_offload_that_is_not_what_runs_stops_the_run(chosen, pretend, device, sentence, make_job, tmp_path) -> None:
    one, other = (spread(offload=offload) for offload in (chosen, pretend))
    said = run_built(_places, prepare_cell(make_job(), tmp_path), one, other, device)[0]
    assert sentence in said
    assert "What was asked is not what runs" in said


def test_states_that_lie_elsewhere_stop_the_first_step() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = torch.optim.AdamW([weight])
    named = [("weight", weight)]
    steps, asked = Stepped(detours=(LocalParts(named),)), {"execution": spread(), "device": torch.device("cpu")}
    read_back_places(optimizer, named, steps, **asked)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    read_back_places(optimizer, named, steps, **asked)
    optimizer.state[weight]["exp_avg"] = torch.ones(2, 2, device="meta")
    with pytest.raises(GuardError, match="the optimizer's exp_avg of weight lies in the memory of meta"):
        for hook in list(optimizer._optimizer_step_post_hooks.values()):
            hook(optimizer, (), {})


def _roles(built: Build) -> tuple[int, ...]:
    """Bytes on a GPU: all but FSDP's on the host, copies that are stepped, and their states."""
    train_on(built)
    on_host = {id(parameter) for parameter in _streamed(built.model.spread.modules)}
    here = [local_part(p) for _, p in built.model.parameters if id(p) not in on_host]
    trained = [local_part(p) for p in built.model.trainable if id(p) not in on_host]
    own = {weight.data_ptr() for weight in here}
    stepped_here = [p for _, p in built.checkpoints.stepped.named if p.data_ptr() in own]
    states = [v for p in stepped_here for v in built.optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return tuple(sum(tensor.nbytes for tensor in tensors) for tensors in (here, trained, states))


def _streamed(modules: Iterable[torch.nn.Module]) -> Iterator[torch.nn.Parameter]:
    """The parameters that FSDP keeps in the host's memory."""
    sharded = (part for module in modules for part in module.modules() if isinstance(part, FSDPModule))
    for group in (group for part in sharded for group in groups_of(part._get_fsdp_state())):
        yield from (one.sharded_param for one in group.fsdp_params if one.offload_to_cpu)


#: Some layouts with each way to offload that moves something, and others.
BOTH = [(layout, way) for layout in (Layout(), FSDP, HSDP, Layout(tp=2)) for way in ("optimizer", "parameters")]


BOTH += [(FSDP, "none"), (ZERO1_OF_3, "optimizer"), (Layout(dp_replicate=2, dp_shard=2, tp=2), "parameters")]
BOTH += [(layout, "parameters") for layout in (Layout(dp_shard=2, tp=2), Layout(dp_shard=2, pp=2))]


@pytest.mark.parametrize(("layout", "offload"), BOTH)
@pytest.mark.parametrize(("method", "precision"), [("full", "fp32"), ("lora", "mixed")])
def test_what_stays_on_a_gpu_is_forecast_exactly(method, precision, layout, offload, make_job, tmp_path) -> None:
    chosen = spread(layout, offload=offload, precision=precision)
    job = make_job("tied", method=method, train={"max_steps": 2, "precision": precision})
    forecast = forecast_holdings(job, chosen, hardware=f"{layout.world_size}x H100-SXM")
    ranks = run_built(_roles, prepare_cell(job, tmp_path), chosen)
    assert ranks == [(one.stored, one.gradients, one.optimizer) for one in forecast]
    assert {one.on_host > 0 for one in forecast} == {offload != "none"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [("none", "optimizer"), ("optimizer", "parameters"), ("parameters", "none")]
)
def test_a_run_goes_on_with_another_offload(before, after, make_job, tmp_path) -> None:
    job = make_job("tied")
    one, other = (spread(FSDP, offload=kind) for kind in (before, after))
    must_be_the_same(train_cell(job, tmp_path / "whole", one), move(job, tmp_path / "moved", one, other, at=7))
