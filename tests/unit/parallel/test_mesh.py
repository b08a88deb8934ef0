"""spec/layout.py says which rank stands where; the device mesh must say the same."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shardwise.errors import InputError
from shardwise.parallel.mesh import TIMEOUT, device_index, join_world
from shardwise.spec.layout import AXES, Layout
from shardwise.train.progress import LONG_SECONDS
from tests.dist.worlds import run_world


def _places(layout: Layout) -> tuple[list[int], list[int], int]:
    world = join_world(layout)
    coordinate = world.mesh.get_coordinate()
    assert coordinate is not None
    return list(coordinate), dist.get_process_group_ranks(world.data_group), world.data_rank


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2, dp_shard=2), Layout(dp_shard=2, tp=2), Layout(pp=2, tp=2)])
def test_the_mesh_and_the_layout_agree_on_every_rank(layout: Layout) -> None:
    for rank, (coordinate, data_ranks, data_rank) in enumerate(run_world(4, _places, layout)):
        at = layout.coordinates(rank)
        assert coordinate == [getattr(at, axis) for axis in AXES]
        assert len(data_ranks) == layout.data_world_size
        assert data_ranks[data_rank] == rank


def _timeouts(layout: Layout) -> list[timedelta]:
    """Of every group of this rank, as torch lists them."""
    join_world(layout)
    groups = distributed_c10d._world.pg_map
    return [group._get_backend(torch.device("cpu")).options._timeout for group in groups]


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2, dp_shard=2), Layout(dp_shard=2, tp=2), Layout(pp=2, tp=2)])
def test_no_group_gives_up_sooner_than_the_watch_which_names_who_is_waited_for(layout: Layout) -> None:
    """A mesh makes groups with torch's own time-out, of half an hour or less, for axes that are not the whole world."""
    assert TIMEOUT.total_seconds() > LONG_SECONDS
    for timeouts in run_world(4, _timeouts, layout):
        assert len(timeouts) > 3
        assert {*timeouts} == {TIMEOUT}


def _six(layout: Layout) -> int:
    os.environ["MASTER_ADDR"] = "::1"
    join_world(layout)
    total = torch.ones(1)
    dist.all_reduce(total)
    return int(total)


def test_ranks_meet_on_the_loopback_of_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no loopback of IPv6")
    assert run_world(2, _six, Layout(dp_shard=2)) == [2, 2]


def _wrong_size(layout: Layout) -> str:
    with pytest.raises(InputError) as caught:
        join_world(layout)
    return str(caught.value)


def test_a_world_of_another_size_is_refused() -> None:
    said = run_world(2, _wrong_size, Layout(dp_replicate=4))[0]
    assert said == "2 processes were started; the layout ddp needs 4"


def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_it_sees() -> None:
    assert [device_index(rank, visible=4) for rank in range(4)] == [0, 1, 2, 3]
    assert [device_index(rank, visible=1) for rank in range(4)] == [0, 0, 0, 0]
    with pytest.raises(InputError) as caught:
        device_index(3, visible=2)
    assert str(caught.value) == (
        "LOCAL_RANK is 3, and 2 GPUs are visible to this process; start one process for each GPU, or let each process "
        "see one GPU by CUDA_VISIBLE_DEVICES"
    )
