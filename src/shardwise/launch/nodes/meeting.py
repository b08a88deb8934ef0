"""The start of a run on several machines: node 0 listens where the user says, others come."""

import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from shardwise import __version__
from shardwise.errors import InputError
from shardwise.launch.nodes.peers import Message, NodeConnection, Peers, stop_if_asked, word_of
from shardwise.launch.processes.stop_requests import StopRequests

#: torch's own choice.
DEFAULT_PORT = 29500

#: How long nodes wait for each other to be started, and from when on that is said.
MEETING_SECONDS, PATIENT_SECONDS = 600.0, 10.0

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines of a start: how many, which of them this is, and where node 0 listens."""

    count: int
    rank: int
    host: str
    port: int = DEFAULT_PORT

    @classmethod
    def read(cls, *, nodes: int | None, node_rank: int | None, master: str | None, max_restarts: int) -> Self | None:
        """Of the options of `train`; None for one machine, as a batch script may ask for with all
        three. Raises InputError: one is missing or impossible."""
        if (nodes == 1 and not node_rank) or (nodes is node_rank is master is None):
            return None
        if nodes is None:
            raise InputError("--node-rank and --master are for several machines; say how many with --nodes")
        if nodes == 1:
            raise InputError(
                f"--node-rank is {node_rank}, and --nodes 1 is one machine; leave both out, or say how many"
            )
        if max_restarts:
            raise InputError("--max-restarts is for one machine; on several, start the same command again on each")
        if node_rank is not None and not 0 <= node_rank < nodes:
            raise InputError(f"--node-rank is {node_rank}; with --nodes {nodes} it is from 0 to {nodes - 1}")
        if master is None or node_rank is None:
            raise InputError(
                f"--nodes {nodes} needs --node-rank, from 0 to {nodes - 1}, another on each machine, and --master with "
                "the address of node 0"
            )
        host, colon, port = master.rpartition(":") if master.count(":") == 1 else (master, "", "")
        if colon and not (port.isdigit() and 0 < int(port) < 65536):
            raise InputError(f"--master is {master}; expected ADDRESS or ADDRESS:PORT")
        return cls(count=nodes, rank=node_rank, host=host, port=int(port or DEFAULT_PORT))


def listen(nodes: Nodes) -> socket.socket:
    """Node 0: listens where the others look for it. Raises InputError: something else does."""
    try:
        return socket.create_server(("", nodes.port), backlog=nodes.count + 8)
    except OSError as error:
        message = f"port {nodes.port} of node 0 cannot be used: {error.strerror}; name another, on every node: "
        raise InputError(f"{message}--master {nodes.host}:PORT") from None


def gather(nodes: Nodes, server: socket.socket, *, say: Say) -> Peers:
    """Node 0: waits for all. Raises InputError: one is another start's, or late; StoppedError."""
    came: dict[int, NodeConnection] = {}
    server.settimeout(0.2)
    began, said = time.monotonic(), False
    with StopRequests() as requests, _told_on_error(came):
        while len(came) < nodes.count - 1:
            with suppress(TimeoutError):
                link = _greet(server.accept()[0], nodes, known=came)
                if link is not None:
                    came[link.node] = link
            missing = sorted(set(range(1, nodes.count)) - set(came))
            waited = time.monotonic() - began
            names = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            if waited > PATIENT_SECONDS and missing and not said:
                said = True
                say(f"waiting for {names}: start the same command there, with --node-rank")
            if waited > MEETING_SECONDS and missing:
                raise InputError(f"{names} did not come within {MEETING_SECONDS:g} s; start the same command there")
            stop_if_asked(requests, "stopped before all nodes came")
    links = [came[node] for node in sorted(came)]
    return Peers(links=links, address=links[0].addresses[0])


@contextmanager
def _told_on_error(came: Mapping[int, NodeConnection]) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        for link in came.values():
            link.send(word_of(error))
            link.close()
        raise


def _greet(connection: socket.socket, nodes: Nodes, *, known: dict[int, NodeConnection]) -> NodeConnection | None:
    """Hears who comes; None if no node of ours. Raises InputError: of another start or version."""
    link = NodeConnection(connection)
    deadline = time.monotonic() + 2.0
    hello: Message = {}
    try:
        while not hello and not link.lost and time.monotonic() < deadline:
            hello = next(iter(link.receive()), hello)
            time.sleep(0.01)
        link.node, link.name = int(hello["node"]), str(hello["name"])
    except (ValueError, KeyError, TypeError):
        link.close()
        return None
    fault = None
    if hello["version"] != __version__:
        fault = f"{link} runs shardwise {hello['version']}, and node 0 {__version__}; install the same"
    elif hello["nodes"] != nodes.count:
        fault = (
            f"{link} was started with --nodes {hello['nodes']}, and node 0 with --nodes {nodes.count}; make them equal"
        )
    elif link.node in known or not 0 < link.node < nodes.count:
        fault = f"{link.name} was started with --node-rank {link.node}, as another node was; give each its own"
    if fault is not None:
        link.send({"exit_code": InputError.exit_code, "message": fault})
        link.close()
        raise InputError(fault)
    link.send({"name": socket.gethostname()})
    return link


def join(nodes: Nodes, *, say: Say) -> Peers:
    """The other nodes: connects to node 0. Raises InputError: it does not listen; StoppedError."""
    began, said = time.monotonic(), False
    where = f"{nodes.host}:{nodes.port}"
    with StopRequests() as requests:
        while True:
            try:
                connection = socket.create_connection((nodes.host, nodes.port), timeout=5.0)
                break
            except OSError as error:
                reason = error.strerror or str(error)
            waited = time.monotonic() - began
            if waited > PATIENT_SECONDS and not said:
                said = True
                say(f"waiting for node 0 at {where} ({reason})")
            if waited > MEETING_SECONDS:
                raise InputError(f"node 0 does not answer at {where} ({reason}); start it, or correct --master")
            stop_if_asked(requests, "stopped before node 0 came")
            requests.wait(0.3)
    link = NodeConnection(connection)
    link.send({"node": nodes.rank, "nodes": nodes.count, "name": socket.gethostname(), "version": __version__})
    return Peers(node=nodes.rank, links=[link], address=link.addresses[1])
