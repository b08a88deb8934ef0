"""spec/layout/axes.py says which rank stands where; the device mesh must say the same."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shardwise.errors import InputError
from shardwise.parallel.mesh import TIMEOUT, device_index, join_world
from shardwise.spec.layout.axes import AXES, Layout
from shardwise.train.watching.progress import LONG_SECONDS
from tests.dist.worlds import run_world, said_by


def _places(layout: Layout) -> tuple[list[int], list[int], int, list[timedelta]]:
    """The last are the time-outs of every group of this rank, as torch lists them."""
    world = join_world(layout)
    coordinate, groups = world.mesh.get_coordinate(), distributed_c10d._world.pg_map
    assert coordinate is not None
    timeouts = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    return list(coordinate), dist.get_process_group_ranks(world.data_group), world.data_rank, timeouts


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2, dp_shard=2), Layout(dp_shard=2, tp=2), Layout(pp=2, tp=2)])
def test_the_mesh_and_the_layout_agree_on_every_rank(layout: Layout) -> None:
    assert TIMEOUT.total_seconds() > LONG_SECONDS, "the watch, which names who is waited for, gives up first"
    for rank, (coordinate, data_ranks, data_rank, timeouts) in enumerate(run_world(4, _places, layout)):
        at = layout.coordinates(rank)
        assert coordinate == [getattr(at, axis) for axis in AXES]
        assert len(data_ranks) == layout.data_world_size
        assert data_ranks[data_rank] == rank
        assert len(timeouts) > 3
        assert {*timeouts} == {TIMEOUT}


def test_a_world_of_another_size_is_refused() -> None:
    said = run_world(2, said_by, InputError, join_world, Layout(dp_replicate=4))[0]
    assert said.startswith("2 processes were started; the layout ddp needs 4; start them together, by torchrun or srun")


def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_it_sees() -> None:
    assert (device_index(3, visible=4), device_index(3, visible=1)) == (3, 0)
    assert said_by(InputError, device_index, 3, visible=2) == (
        "LOCAL_RANK is 3, and 2 GPUs are visible to this process; start one process for each GPU, or let each process "
        "see one GPU by CUDA_VISIBLE_DEVICES"
    )
