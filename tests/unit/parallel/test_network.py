"""Which interface ranks talk over, and that the device mesh stands as the layout says."""

import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shardwise.errors import InputError
from shardwise.parallel import network
from shardwise.parallel.mesh import TIMEOUT, device_index, join_world
from shardwise.parallel.network import OF_NCCL, VARIABLE, check_named, choose_interface, interface_of, is_here
from shardwise.spec.layout.axes import AXES, Layout
from shardwise.train.watching.progress import LONG_SECONDS
from tests.dist.worlds import run_world, said_by
from tests.marks import first
from tests.refusals import must_refuse
from tests.unit.launch.test_joined import REMEDY

TWO = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.1.0.5", "fe80::1"), "ib0": ("10.2.0.5",)}
ONE = {"lo": ("127.0.0.1",), "eth0": ("10.1.0.5",)}
HERE = "127.0.0.1"
CASES = [(0, 2, "the other rank", HERE), (0, 4, "the other 3 ranks", socket.gethostname()), (1, 2, "rank 0", HERE)]


def test_the_interface_is_that_of_the_route_to_the_master_the_only_one_or_asked_for() -> None:
    assert interface_of("10.2.0.5", interfaces=TWO, master="n0") == "ib0"
    assert interface_of("fe80::1", interfaces=TWO, master="n0") == "eth0"
    assert interface_of(None, interfaces=ONE, master="n0") == "eth0"
    assert interface_of(None, interfaces={"lo": ("127.0.0.1",)}, master="n0") is None
    assert said_by(InputError, interface_of, None, interfaces=TWO, master="n0") == (
        f"MASTER_ADDR is n0, and it cannot be told which interface of {socket.gethostname()} leads to the other "
        "machines; set GLOO_SOCKET_IFNAME to one of eth0, ib0"
    )


def test_what_the_user_has_set_stays_and_a_master_that_cannot_be_reached_is_said(monkeypatch, capsys) -> None:
    monkeypatch.setenv(VARIABLE, "ib7")
    choose_interface("127.0.0.1")
    assert capsys.readouterr().out == ""
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"MASTER_ADDR is nowhere.invalid, which this machine .* has no route to"):
        choose_interface("nowhere.invalid")


@pytest.fixture
def left_over(monkeypatch):
    """Variables that torchrun leaves in a shell; returns the port, where nobody listens."""
    for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", VARIABLE, OF_NCCL):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(network, "SAID_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(network, "MEETING_SECONDS", 1.0)
    return port


@pytest.mark.parametrize(("rank", "size", "whom", "host"), first(1, CASES, ci=2))
def test_a_rank_says_within_seconds_for_whom_it_waits(rank, size, whom, host, left_over, monkeypatch, capfd) -> None:
    for name, value in (("RANK", str(rank)), ("WORLD_SIZE", str(size)), ("MASTER_ADDR", host)):
        monkeypatch.setenv(name, value)
    said = said_by(InputError, join_world, Layout(dp_shard=size))
    waits = f"rank {rank} of {size} on {socket.gethostname()} waits for {whom} at {host}:{left_over}"
    assert f"{waits}; {REMEDY}\n" in capfd.readouterr().err
    assert said == f"{waits}, which nobody answered in 1 s; {REMEDY}"


def test_variables_that_do_not_say_where_ranks_meet_and_a_held_port_are_named(left_over, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", left_over)):
        said = said_by(InputError, join_world, Layout(dp_shard=2))
    assert said == (
        f"rank 0 of 2 cannot listen at MASTER_ADDR: port {left_over} of 127.0.0.1 is in use by another program; set "
        "MASTER_PORT to a free one"
    )
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.delenv("RANK")
    assert said_by(InputError, join_world, Layout(dp_shard=2)) == (
        "WORLD_SIZE is 2, and RANK and MASTER_ADDR are not set; start them together, by torchrun or srun; if "
        "WORLD_SIZE and LOCAL_RANK are left over from another start, put `env -u WORLD_SIZE -u "
        "LOCAL_RANK -u MASTER_PORT` before the command"
    )
    with pytest.raises(InputError, match="2 processes were started; the layout single needs 1; start them together"):
        join_world(Layout())


def test_an_interface_that_is_not_there_is_named_with_its_variable_before_anyone_waits(left_over, monkeypatch) -> None:
    here = ", ".join(network._interfaces())
    monkeypatch.setenv(VARIABLE, "eth9")
    assert said_by(InputError, join_world, Layout(dp_shard=2)) == (
        f"GLOO_SOCKET_IFNAME is eth9, and {socket.gethostname()} has {here}; set it to one of these, or unset it "
        "(env -u GLOO_SOCKET_IFNAME)"
    )
    monkeypatch.setenv(VARIABLE, "lo,eth9")
    must_refuse(InputError, "GLOO_SOCKET_IFNAME is lo,eth9", check_named, gpus=False)


@pytest.mark.parametrize(
    ("value", "is_known"),
    [("lo", True), ("l,eth9", True), ("=lo", True), ("=l", False), ("eth9", False), ("^lo", True), ("", True)],
)
def test_nccls_variable_is_read_as_nccl_reads_it_where_there_are_gpus(value, is_known, monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(OF_NCCL, value)
    check_named(gpus=False)
    if is_known:
        check_named(gpus=True)
        return
    must_refuse(InputError, f"NCCL_SOCKET_IFNAME is {value}, and .* has lo", check_named, gpus=True)


def test_an_address_is_here_where_it_is_this_machines_own() -> None:
    own = network._own_address("192.0.2.1")
    assert all(map(is_here, ("localhost", "127.0.0.1", "::1", socket.gethostname(), *([own] if own else []))))
    assert not any(map(is_here, ("192.0.2.1", "nowhere.invalid")))


def _places(layout: Layout) -> tuple[list[int], list[int], int, list[timedelta]]:
    """The last are the time-outs of every group of this rank, as torch lists them."""
    world = join_world(layout)
    coordinate, groups = world.mesh.get_coordinate(), distributed_c10d._world.pg_map
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


def test_a_world_or_a_number_of_gpus_that_does_not_fit_is_refused() -> None:
    said = run_world(2, said_by, InputError, join_world, Layout(dp_replicate=4))[0]
    assert said.startswith("2 processes were started; the layout ddp needs 4; start them together, by torchrun or srun")
    assert (device_index(3, visible=4), device_index(3, visible=1)) == (3, 0)
    assert said_by(InputError, device_index, 3, visible=2) == (
        "LOCAL_RANK is 3, and 2 GPUs are visible to this process; start one process for each GPU, or let each process "
        "see one GPU by CUDA_VISIBLE_DEVICES"
    )
