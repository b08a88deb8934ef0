"""ZeRO-1's windows: views of whole weights, gradients that are freed, states for this rank's rows, rows exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from shardwise.models.load import local_window
from shardwise.parallel.mesh import World, join_world
from shardwise.parallel.optimizer.zero1 import Windows, exchange_rows
from shardwise.parallel.ownership import local_part
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.guards.checks import GuardError
from shardwise.train.guards.replicas import check_replicas
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world

THREE = Layout(dp_shard=3, zero_stage=1, reshard_after_forward=False)
CHOSEN = execution(THREE, micro_batch_size=3)

#: Rows that divide, that do not, that leave the last rank nothing, fewer than ranks; one dim and three; two types.
SHAPES = [(6, 5), (7, 3), (4, 2), (1, 4), (2,), (11,), (5, 2, 3)]


def _tensors() -> list[torch.Tensor]:
    shapes = [(torch.float32, shape) for shape in SHAPES] + [(torch.bfloat16, (7, 3)), (torch.bfloat16, (2,))]
    return [torch.arange(torch.Size(shape).numel(), dtype=dtype).view(shape) + 1 for dtype, shape in shapes]


def _of(truths: list[torch.Tensor], world: World) -> list[torch.Tensor]:
    """The tensors as a rank holds them: whole, or sliced in every way that tensor parallelism knows."""
    mesh = world.mesh["tp"]
    if mesh.size() == 1:
        return truths
    places: list[tuple[int, Placement]] = [(0, Replicate()), (0, Shard(0)), (1, Shard(1))]
    ways = [(truth, placement) for truth in truths for dim, placement in places if dim < truth.ndim]
    return [distribute_tensor(truth, mesh, [placement], src_data_rank=None) for truth, placement in ways]


def _exchanged(layout: Layout, bucket_bytes: int) -> list[bool]:
    """Every rank keeps its own rows and forgets the others'; after the exchange all must be there again."""
    world = join_world(layout)
    truths = _of(_tensors(), world)
    named = [(str(i), nn.Parameter(torch.zeros_like(truth))) for i, truth in enumerate(truths)]
    windows = Windows(named, world.mesh["dp_shard", "tp"])
    with torch.no_grad():
        for (_, window), (_, whole), truth in zip(windows.named, named, truths, strict=True):
            assert isinstance(window, DTensor)
            assert window.shape == whole.shape
            offsets, lengths = local_window(window)
            everything = truth.full_tensor() if isinstance(truth, DTensor) else truth
            rows = everything[tuple(slice(at, at + length) for at, length in zip(offsets, lengths, strict=True))]
            window.to_local().copy_(rows)
            assert int(local_part(whole).count_nonzero()) == rows.numel(), "a window is a view of the whole weight"
    exchange_rows([local_part(whole) for _, whole in named], axis=world.mesh["dp_shard"], most_bytes=bucket_bytes)
    return [torch.equal(local_part(whole), local_part(truth)) for (_, whole), truth in zip(named, truths, strict=True)]


@pytest.mark.parametrize(
    "layout", [THREE, replace(THREE, dp_shard=2, tp=2), replace(THREE, tp=2)], ids=["3", "2 of slices", "3 of slices"]
)
@pytest.mark.parametrize("bucket_bytes", [1, 24, 100, 2**20])
def test_rows_of_any_shape_come_together_in_buckets_of_any_size(bucket_bytes: int, layout: Layout) -> None:
    for rank in run_world(layout.world_size, _exchanged, layout, bucket_bytes):
        assert all(rank), rank


def _one_step(run: RunDirectory) -> tuple[bool, bool, int, int]:
    built = composed(run, CHOSEN)
    built.step(next(iter(built.batches.from_(0))))
    had = all(parameter.grad is not None for parameter in built.model.trainable)
    built.optimizer.step()
    built.optimizer.zero_grad()
    freed = all(parameter.grad is None for parameter in built.model.trainable)
    check_replicas(built.world, built.model.parameters, when="after step 1")
    states = [v for s in built.optimizer.state.values() for v in s.values() if isinstance(v, DTensor)]
    mine = sum(state.to_local().numel() for state in states)
    return had, freed, mine, sum(parameter.numel() for parameter in built.model.trainable)


def test_gradients_are_whole_until_the_step_and_states_together_are_one_copy(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    ranks = run_world(3, _one_step, prepare_cell(make_job(), tmp_path))
    assert all(had and freed for had, freed, _, _ in ranks)
    assert sum(mine for _, _, mine, _ in ranks) == 2 * ranks[0][3]


def _sharded_states(run: RunDirectory) -> str:
    """Sharded states where the layout, by the time they are read back, says that every rank has all of them."""
    built = composed(run, CHOSEN)
    object.__setattr__(built.world, "layout", Layout(dp_replicate=3))
    built.step(next(iter(built.batches.from_(0))))
    with pytest.raises(GuardError) as caught:
        built.optimizer.step()
    return str(caught.value)


def test_states_that_are_not_what_the_layout_says_stop_the_run(make_job: Callable[..., Job], tmp_path: Path) -> None:
    said = run_world(3, _sharded_states, prepare_cell(make_job(), tmp_path))[0]
    assert "of the optimizer's exp_avg of " in said
    assert "What was asked is not what runs" in said
