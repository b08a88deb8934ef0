"""Launchers of several machines: what they are told, how they meet, what one hears of another."""

import socket
import threading
from collections.abc import Generator
from dataclasses import replace

import pytest

from shardwise.errors import InputError, RunDirectoryError, StoppedError, WorkerFailedError
from shardwise.launch.failure import RankExit
from shardwise.launch.nodes import peers as module
from shardwise.launch.nodes.meeting import Nodes, gather, join, listen
from shardwise.launch.nodes.peers import Peers, word_of
from tests.refusals import must_refuse, said_by
from tests.unit.fakes import wait_until


@pytest.fixture
def nodes() -> Nodes:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return Nodes(count=2, rank=0, host="127.0.0.1", port=port)


@pytest.fixture
def both(nodes: Nodes) -> Generator[tuple[Peers, Peers]]:
    with listen(nodes) as server:
        other = join(replace(nodes, rank=1), say=print)
        first = gather(nodes, server, say=print)
    yield first, other
    first.close()
    other.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": 2, "node_rank": 5, "master": None}, "--node-rank is 5; with --nodes 2 it is from 0 to 1"),
        ({"nodes": 2, "node_rank": 0, "master": None}, "and --master with the address of node 0"),
        ({"nodes": 2, "node_rank": 0, "master": "n0:x"}, "--master is n0:x; expected ADDRESS or ADDRESS:PORT"),
        ({"nodes": 1, "node_rank": 1, "master": "n0"}, "--node-rank is 1, and --nodes 1 is one machine; leave both"),
        ({"nodes": None, "node_rank": 0, "master": "n0"}, "say how many with --nodes"),
        ({"nodes": 2, "node_rank": 0, "master": "n0", "max_restarts": 1}, "--max-restarts is for one machine"),
    ],
)
def test_options_that_are_missing_or_impossible_are_refused(options, sentence) -> None:
    assert sentence in said_by(InputError, Nodes.read, **{"max_restarts": 0, **options})


def test_the_master_may_have_a_port_and_one_node_is_a_run_on_this_machine() -> None:
    named = Nodes.read(nodes=2, node_rank=1, master="n0:7", max_restarts=0)
    assert named == Nodes(count=2, rank=1, host="n0", port=7)
    bare = Nodes.read(nodes=2, node_rank=1, master="fd00::1", max_restarts=0)
    assert bare == replace(named, host="fd00::1", port=29500)
    for nodes, rank, master in ((None, None, None), (1, None, None), (1, 0, "n0")):
        assert Nodes.read(nodes=nodes, node_rank=rank, master=master, max_restarts=2) is None


def test_two_nodes_that_meet_tell_each_other_how_ranks_ended_and_node_0_how_it_went(both) -> None:
    first, other = both
    other.say([RankExit(rank=1, code=-9)])
    wait_until(lambda: first.look() or first.failed)
    assert first.exits == [RankExit(rank=1, code=-9)]
    other.say([RankExit(rank=1, code=-9)], ended=True)
    first.settle([])
    assert first.exits == [RankExit(rank=1, code=-9)], "each exit is told once"
    assert first.blame() is None
    first.send(word_of(WorkerFailedError("rank 1 was ended by signal 9")))
    other.settle([])
    must_refuse(WorkerFailedError, "rank 1 was ended by signal 9", other.conclude)


@pytest.mark.parametrize("error", [InputError("no"), StoppedError("saved", exit_code=143), WorkerFailedError("why")])
def test_an_error_of_node_0_is_the_same_on_the_others(both, error) -> None:
    first, other = both
    first.send(word_of(error))
    with pytest.raises(type(error), match=str(error)) as caught:
        other.await_begin()
    assert caught.value.exit_code == error.exit_code


def test_a_node_that_goes_away_is_named(both) -> None:
    first, other = both
    other.close()
    first.settle([])
    name = socket.gethostname()
    assert first.failed
    assert first.blame() == f"node 1 ({name}) is gone: its processes were ended, or the machine went down"


def test_what_a_node_does_not_see_is_said(both, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SEEN_SECONDS", 1.0)
    first, other = both
    waiting = threading.Thread(target=other.await_begin)
    waiting.start()
    first.check_seen(tmp_path)
    with pytest.raises(RunDirectoryError, match=rf"node 1 \(.*\) does not see the run directory \({tmp_path}/no\); "):
        first.check_seen(tmp_path / "no")
    first.send({"begin": True})
    waiting.join(5)
    assert not waiting.is_alive()


def test_nodes_of_different_starts_do_not_meet(nodes) -> None:
    with listen(nodes) as server:
        other = join(replace(nodes, rank=1, count=3), say=print)
        with pytest.raises(InputError, match="was started with --nodes 3, and node 0 with --nodes 2; make them equal"):
            gather(nodes, server, say=print)
        must_refuse(InputError, "make them equal", other.await_begin)
        other.close()


def test_a_stranger_is_passed_over_and_a_port_that_is_taken_is_said(nodes) -> None:
    with listen(nodes) as server:
        stranger = socket.create_connection((nodes.host, nodes.port))
        stranger.sendall(b"GET / HTTP/1.1\n")
        other = join(replace(nodes, rank=1), say=print)
        first = gather(nodes, server, say=print)
        assert [link.node for link in first.links] == [1]
        for each in (stranger, first, other):
            each.close()
    with listen(nodes), pytest.raises(InputError, match=f"port {nodes.port} of node 0 cannot be used"):
        listen(nodes)
