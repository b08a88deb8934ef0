"""Inputs of recomputed blocks in the host's memory: the same training, which tensors go there, and when they move."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwise.parallel import compiled, host_inputs
from shardwise.parallel.host_inputs import HostInputs
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import INPUTS_ON_GPU, Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, Trained, must_equal, prepare_cell, spread, train_rank
from tests.dist.worlds import run_world

LAYOUTS: dict[str, Execution] = {
    "single": spread(micros=2),
    "ddp(2)": spread(Layout(dp_replicate=2), micros=2),
    "zero1(2)": spread(Layout(dp_shard=2, **ZERO1)),
    "zero2(2)": spread(Layout(dp_shard=2, **ZERO2), micros=2),
    "fsdp(2)": spread(Layout(dp_shard=2), micros=2),
    "fsdp(2), parameters on the host": spread(Layout(dp_shard=2), offload="parameters"),
    "tp(2)": spread(Layout(tp=2), micros=2),
    "cp(2)": spread(Layout(cp=2)),
    "1f1b(2)": spread(Layout(pp=2), micros=4),
    "interleaved(2)": spread(Layout(pp=2, schedule="interleaved"), micros=4),
}
CELLS = {name: replace(one, gradient_checkpointing="offloaded") for name, one in LAYOUTS.items()}


def train_and_count(run: RunDirectory, chosen: Execution) -> tuple[Trained, int, int]:
    """Trains; with how many inputs went to the host, and how many of them came back."""
    counts = {"_leave": 0, "_arrived": 0}
    for name in counts:
        _count(counts, name)
    trained = train_rank(run, chosen)
    return trained, counts["_leave"], counts["_arrived"]


def _count(counts: dict[str, int], name: str) -> None:
    whole = getattr(HostInputs, name)

    def counted(self: HostInputs, *arguments: object) -> object:
        counts[name] += 1
        return whole(self, *arguments)

    setattr(HostInputs, name, counted)  # the fork's own


def must_move_each_input_once(moved: list[tuple[int, int]], chosen: Execution, *, steps: int) -> None:
    """Of four blocks, over all ranks that share a row."""
    layout = chosen.layout
    per_step = 4 * chosen.gradient_accumulation_steps * layout.world_size // layout.pp
    assert sum(left for left, _ in moved) == steps * per_step
    assert sum(came for _, came in moved) == steps * per_step


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), [("full", "deep tied"), ("lora", "deep untied")])
def test_inputs_on_the_host_train_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    chosen = replace(CELLS[cell], optimizer="sgd")
    ranks = run_world(chosen.layout.world_size, train_and_count, prepare_cell(job, tmp_path), chosen)
    must_equal(single(job), [trained for trained, _, _ in ranks])
    must_move_each_input_once([(left, came) for _, left, came in ranks], chosen, steps=len(ranks[0][0].metrics))


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("cell", ["single"])
@pytest.mark.parametrize(("method", "model"), [("full", "deep tied"), ("lora", "deep untied")])
def test_compiled_blocks_keep_their_inputs_on_the_host(
    method, model, cell, single, make_job, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    job = make_job(model, method=method, train={**OPTIMIZERS["sgd"], "max_steps": 4})
    chosen = replace(CELLS[cell], optimizer="sgd", compile=True)
    ranks = run_world(chosen.layout.world_size, train_and_count, prepare_cell(job, tmp_path), chosen)
    must_equal(single(job), [trained for trained, _, _ in ranks])
    must_move_each_input_once([(left, came) for _, left, came in ranks], chosen, steps=len(ranks[0][0].metrics))


class Event:
    """When a copy is done."""

    waited = False


class Streams:
    """A stand-in for torch that has streams and no GPU: it notes which copies are waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.cuda = SimpleNamespace(
            Stream=lambda _: self, current_stream=lambda _: self, stream=lambda _: nullcontext()
        )

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty_like(self, tensor: torch.Tensor, **_: object) -> torch.Tensor:
        """Memory of the CPU, wherever it was asked for."""
        return torch.empty_like(tensor)

    def wait_stream(self, _: Streams) -> None:
        """What follows here waits for what was asked of another stream."""

    def record_event(self) -> Event:
        """The end of what was asked of this stream."""
        self.events.append(Event())
        return self.events[-1]

    def wait_event(self, event: Event) -> None:
        """What follows here waits for it."""
        event.waited = True


def gradient_of(blocks: Sequence[nn.Module], given: torch.Tensor) -> torch.Tensor:
    """Of what is given to the first block, each of which is computed again in its backward."""
    given = given.clone().requires_grad_()
    hidden = given * 1.0
    for block in blocks:
        hidden = block(hidden)
    hidden.square().sum().backward()
    assert given.grad is not None
    return given.grad


class Recomputed(nn.Module):
    """A block that is computed again in its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, hidden: torch.Tensor) -> Any:
        """Hidden states after it."""
        return checkpoint(self.inside, hidden, use_reentrant=False)


def test_two_inputs_are_on_the_gpu_at_a_time_and_every_copy_is_waited_for(monkeypatch) -> None:
    torch.manual_seed(0)
    blocks = [Recomputed() for _ in range(6)]
    given = torch.randn(3, 4)
    expected, streams = gradient_of(blocks, given), Streams()
    monkeypatch.setattr(host_inputs, "torch", streams)
    kept, here = list[HostInputs](), list[int]()
    monkeypatch.setattr(host_inputs, "HostInputs", lambda device: kept.append(HostInputs(device)) or kept[0])
    host_inputs.keep_inputs_on_host(blocks, torch.device("cuda"))
    inputs = list[host_inputs._Kept]()
    for name in ("_leave", "_fetch"):
        _note(monkeypatch, name, inputs, here)
    for _ in range(2):
        assert torch.equal(gradient_of(blocks, given), expected)
    assert max(here) == INPUTS_ON_GPU - 1, "beside the one that was handed over"
    assert len(streams.events) == 2 * (6 + 5), "the last input is asked for before it has left"
    assert all(event.waited for event in streams.events)


def _note(monkeypatch: pytest.MonkeyPatch, name: str, inputs: list[host_inputs._Kept], here: list[int]) -> None:
    """Notes, behind each call, how many inputs are on the device."""
    whole = getattr(HostInputs, name)

    def noted(self: HostInputs, given: Any) -> Any:
        found = whole(self, given)
        inputs.append(given if found is None else found)
        here.append(len({id(one) for one in inputs if one.here is not None}))
        return found

    monkeypatch.setattr(HostInputs, name, noted)
