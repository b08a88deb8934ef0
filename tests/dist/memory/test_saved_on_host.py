"""What recomputed blocks save on the host: the same training, which tensors go there, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwise.parallel import compiled, recompute
from shardwise.parallel.recompute import SavedOnHost
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import SAVED_ON_GPU, Execution
from shardwise.spec.run import RunDirectory
from tests.dist.cells import LAYOUTS, OPTIMIZERS, Trained, composed, prepare_cell, spread, train_rank
from tests.dist.compare import must_equal
from tests.dist.worlds import run_world

offloaded = partial(spread, gradient_checkpointing="offloaded")
CELLS: dict[str, Execution] = {
    **{name: offloaded(LAYOUTS[name], micros=2) for name in ("single", "ddp", "zero2", "fsdp", "tp")},
    **{name: offloaded(LAYOUTS[name]) for name in ("zero1", "cp")},
    **{name: offloaded(LAYOUTS[name], micros=4) for name in ("pp", "interleaved")},
    "fsdp, parameters on the host": offloaded(LAYOUTS["fsdp"], offload="parameters"),
}


def train_and_count(run: RunDirectory, chosen: Execution) -> tuple[Trained, int, int]:
    """Trains; with how many tensors went to the host, and how many of them came back."""
    counts = {"_leave": 0, "_arrived": 0}
    for name in counts:
        whole = getattr(SavedOnHost, name)

        def counted(self: SavedOnHost, *given: Any, name: str = name, whole: Callable[..., Any] = whole) -> Any:
            counts[name] += 1
            return whole(self, *given)

        setattr(SavedOnHost, name, counted)  # the fork's own
    return train_rank(composed(run, chosen)), counts["_leave"], counts["_arrived"]


def must_move_once(expected: Trained, job: Job, chosen: Execution, root: Path, *, of_a_block: int = 1) -> None:
    """It trains the same, and so many tensors of each of four blocks move, over ranks of a row."""
    layout = chosen.layout
    counted = run_world(layout.world_size, train_and_count, prepare_cell(job, root), chosen)
    ranks, left, came = zip(*counted, strict=True)
    must_equal(expected, [*ranks])
    per_step = 4 * of_a_block * chosen.gradient_accumulation_steps * layout.world_size // layout.pp
    assert sum(left) == sum(came) == len(expected.metrics) * per_step


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), [("full", "deep tied"), ("lora", "deep untied")])
def test_inputs_on_the_host_train_as_one_process_does(method, model, cell, single, make_job, tmp_path) -> None:
    job = make_job(model, method=method, train=OPTIMIZERS["sgd"])
    must_move_once(single(job), job, replace(CELLS[cell], optimizer="sgd"), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize(
    ("cell", "kind", "method", "moved"),
    [
        ("single", "offloaded", "full", 1),
        ("single", "offloaded", "lora", 1),
        ("single", "selective_offloaded", "full", 7),
        ("single", "selective_offloaded", "lora", 14),
        ("pp", "selective_offloaded", "lora", 14),
        ("fsdp", "selective_offloaded", "full", 7),
    ],
)
def test_compiled_blocks_save_on_the_host(cell, kind, method, moved, single, make_job, monkeypatch, tmp_path) -> None:
    """Its input, the results of five products and attention, and of each adapter's first half."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    model = "deep tied" if method == "full" else "deep untied"
    job = make_job(model, method=method, train={**OPTIMIZERS["sgd"], "max_steps": 4})
    chosen = replace(CELLS[cell], gradient_checkpointing=kind, optimizer="sgd", compile=True)
    must_move_once(single(job), job, chosen, tmp_path, of_a_block=moved)


class Streams:
    """A stand-in for torch that has streams and no GPU: it notes which copies are waited for."""

    def __init__(self) -> None:
        self.events: list[SimpleNamespace] = []
        ours = {"Stream": lambda _: self, "current_stream": lambda _: self, "stream": lambda _: nullcontext()}
        self.cuda = SimpleNamespace(**ours)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty_like(self, tensor: torch.Tensor, **_: object) -> torch.Tensor:
        """Memory of the CPU, wherever it was asked for."""
        return torch.empty_like(tensor)

    def wait_stream(self, _: Streams) -> None:
        """What follows here waits for what was asked of another stream."""

    def record_event(self) -> SimpleNamespace:
        """The end of what was asked of this stream."""
        self.events.append(SimpleNamespace(waited=False))
        return self.events[-1]

    def wait_event(self, event: SimpleNamespace) -> None:
        """What follows here waits for it."""
        event.waited = True


def gradient_of(blocks: Sequence[nn.Module], given: torch.Tensor, *, asks: bool = True) -> torch.Tensor | None:
    """Of what is given to the first block."""
    given = given.clone().requires_grad_(asks)
    hidden = given * 1.0
    for block in blocks:
        hidden = block(hidden)
    hidden.square().sum().backward()
    return given.grad


class Recomputed(nn.Sequential):
    """A block that saves its input, and is computed again in its backward."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh())

    def forward(self, hidden: torch.Tensor) -> Any:
        """Hidden states after it."""
        return checkpoint(super().forward, hidden, use_reentrant=False)


@pytest.mark.parametrize(("kind", "tensors"), [(Recomputed, 1), (lambda: nn.Sequential(nn.Tanh(), nn.Sigmoid()), 2)])
def test_what_two_blocks_saved_is_on_the_gpu_at_a_time_and_every_copy_is_waited_for(kind, tensors, monkeypatch) -> None:
    torch.manual_seed(0)
    blocks = [kind() for _ in range(6)]
    given = torch.randn(3, 4)
    expected, streams = gradient_of(blocks, given), Streams()
    monkeypatch.setattr(recompute, "torch", streams)
    all_saved, here = list[recompute._Saved](), list[int]()
    for name in ("_leave", "_fetch"):
        _note(monkeypatch, name, all_saved, here)
    recompute.keep_saved_on_host(blocks, torch.device("cuda"))
    for _ in range(2):
        assert torch.equal(gradient_of(blocks, given), expected)
    assert max(here) == SAVED_ON_GPU - (tensors == 1), "a sole tensor was handed over"
    assert len(streams.events) == 2 * (6 * tensors + 5), "that of the last block is asked for before it has left"
    assert sum(event.waited for event in streams.events) == 2 * (6 + 5), "the last of each block's, on either way"
    assert all(saved.moved is None for saved in all_saved)


def test_what_comes_for_a_block_that_trains_nothing_stays_until_its_copy_is_waited_for(monkeypatch) -> None:
    """Of the blocks below the first that trains, the last is fetched, and never asked for."""
    blocks = [Recomputed().requires_grad_(index > 2) for index in range(6)]
    monkeypatch.setattr(recompute, "torch", Streams())
    all_saved, kept = list[recompute._Saved](), list[SavedOnHost]()
    _note(monkeypatch, "_fetch", all_saved, [])
    monkeypatch.setattr(recompute, "SavedOnHost", lambda device: kept.append(SavedOnHost(device)) or kept[0])
    recompute.keep_saved_on_host(blocks, torch.device("cuda"))
    for _ in range(2):
        gradient_of(blocks, torch.randn(3, 4), asks=False)
        assert [saved for saved in all_saved if saved.moved is not None] == [kept[0]._coming]
    kept[0].begin(torch.randn(3, 4), set(), is_first=True)
    assert all(saved.moved is None for saved in all_saved)


def _note(monkeypatch: pytest.MonkeyPatch, name: str, all_saved: list[recompute._Saved], here: list[int]) -> None:
    """Notes, behind each call, of how many blocks something is on the device."""
    whole = getattr(SavedOnHost, name)

    def noted(self: SavedOnHost, given: Any, *more: Any) -> None:
        whole(self, given, *more)
        all_saved.append(self._now if name == "_leave" else given)
        here.append(len({id(one) for one in all_saved if any(tensor is not None for tensor in one.here)}))

    monkeypatch.setattr(SavedOnHost, name, noted)
