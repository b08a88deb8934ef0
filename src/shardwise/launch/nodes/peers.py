"""The other machines of a run, seen by one: who ended how, who is gone or silent, the run's end."""

import json
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import InputError, RunDirectoryError, ShardwiseError, StoppedError, WorkerFailedError
from shardwise.launch.failure import RankExit
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import SHARED_DISK
from shardwise.units import format_seconds

#: The kernel asks this often whether the other machine is there, and gives up after ten minutes.
_KEEP_ALIVE_SECONDS, _KEEP_ALIVE_COUNT = 5, 120

#: Of Linux's `struct tcp_info`: milliseconds since the last acknowledgement came.
_LAST_ACK = struct.Struct("=56xI")

Message = dict[str, Any]


class NodeConnection:
    """The connection between two nodes' launchers, for lines of JSON. `node`, `name`: the other
    end; `lost`: it has broken, as it does however the other end ends; `ended`: all ranks there have
    ended. A cut cable breaks nothing, but the kernel says for how long nothing has come."""

    def __init__(self, connection: socket.socket, *, node: int = 0, name: str = "") -> None:
        connection.setblocking(False)  # messages are short, and nothing is waited for
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", _KEEP_ALIVE_SECONDS), ("TCP_KEEPINTVL", _KEEP_ALIVE_SECONDS)):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_ALIVE_COUNT)
        self.node, self.name = node, name
        self.lost = self.ended = False
        self._connection = connection
        self._unread = b""

    def __str__(self) -> str:
        return f"node {self.node} ({self.name})" if self.name else f"node {self.node}"

    @property
    def addresses(self) -> tuple[str, str]:
        """This end's and the other's."""
        return str(self._connection.getsockname()[0]), str(self._connection.getpeername()[0])

    def send(self, message: Message) -> None:
        """Sends; that the other end is gone is found by `receive`."""
        with suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """What has come; nothing is waited for."""
        try:
            while not self.lost and (more := self._connection.recv(65536)):
                self._unread += more
            self.lost = True
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def silent_seconds(self) -> float:
        """For how long nothing has come from the other machine, not even its kernel's answers."""
        try:
            known = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size)
        except OSError:
            return 0.0
        return _LAST_ACK.unpack(known)[0] / 1e3

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


#: How long a file that one node has written may take to appear on another.
SEEN_SECONDS = 15.0

#: How long a node waits for what others say of the end, and silence that means nothing will come.
SETTLE_SECONDS, SILENT_SECONDS = 10.0, 12.0

_POLL_SECONDS = 0.05


@dataclass(kw_only=True)
class Peers:
    """The other nodes, as this one sees them: node 0 has a link to each, the others have one to
    node 0; one machine alone has none. `node`: which one this is; `address`: of node 0, as this
    node reaches it; `exits`: how ranks of other nodes ended; `told`: what node 0 says became of the
    run: an exit code and a message."""

    node: int = 0
    links: list[NodeConnection] = field(default_factory=list[NodeConnection])
    address: str = ""
    exits: list[RankExit] = field(default_factory=list[RankExit])
    told: tuple[int, str] | None = None
    _answers: list[Message] = field(default_factory=list[Message])
    _said: int = 0

    def look(self) -> None:
        """Takes what has come."""
        for link in self.links:
            for message in link.receive():
                self._take(message, link)

    def _take(self, message: Message, link: NodeConnection) -> None:
        if "exits" in message:
            self.exits += [RankExit(rank=rank, code=code) for rank, code in message["exits"]]
            link.ended = bool(message["ended"])
        elif "exit_code" in message:
            self.told = (message["exit_code"], message["message"])
        elif message.keys() == {"name"}:
            link.name = message["name"]
        else:
            self._answers.append(message)

    @property
    def failed(self) -> bool:
        """The run cannot go on, for what became of another node."""
        lost = any(link.lost and not link.ended for link in self.links)
        return lost or any(end.code for end in self.exits) or bool(self.told and self.told[0])

    def say(self, exits: Sequence[RankExit], *, ended: bool = False) -> None:
        """Tells the others how ranks of this node ended. `ended`: all have."""
        if len(exits) > self._said or ended:
            new, self._said = exits[self._said :], len(exits)
            self.send({"exits": [(end.rank, end.code) for end in new], "ended": ended})

    def send(self, message: Message) -> None:
        """To every other node that is linked to this one."""
        for link in self.links:
            link.send(message)

    def settle(self, exits: Sequence[RankExit]) -> None:
        """When this node's ranks have ended: waits for the others to say the same, or for node 0 to
        say how it went; not for one that is gone or silent."""
        self.say(exits, ended=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            self.look()
            left = [link for link in self.links if not link.lost and link.silent_seconds() < SILENT_SECONDS]
            if self.told is not None or not left or (self.node == 0 and all(link.ended for link in left)):
                return
            time.sleep(_POLL_SECONDS)

    def conclude(self) -> bool:
        """Raises node 0's result of the run as an error of its exit code; whether there is one."""
        if self.told is None:
            return False
        code, message = self.told
        if code >= 128:
            raise StoppedError(message, exit_code=code)
        if code:
            raise InputError(message) if code == InputError.exit_code else WorkerFailedError(message)
        return True

    def blame(self) -> str | None:
        """The node that is gone or silent, as a sentence."""
        for link in self.links:
            if link.lost and not link.ended:
                return f"{link} is gone: its processes were ended, or the machine went down"
            if (seconds := link.silent_seconds()) > SILENT_SECONDS:
                how = f"nothing has been heard from {link} for {format_seconds(seconds)}"
                return f"{how}: the network between is cut, or the machine hangs"
        return None

    def check_seen(self, path: Path) -> None:
        """Node 0: asks whether all others see a file of the run directory. Raises
        RunDirectoryError: one does not; WorkerFailedError: one is gone, or does not answer."""
        self.send({"look": str(path.resolve())})
        seconds = 2 * SEEN_SECONDS
        deadline = time.monotonic() + seconds
        while len(self._answers) < len(self.links):
            self.look()
            if (blame := self.blame()) is not None or time.monotonic() > deadline:
                raise WorkerFailedError(blame or f"a node has not answered for {seconds:g} s; start all of them again")
            time.sleep(_POLL_SECONDS)
        unseeing = [link for link in self.links if {"node": link.node, "sees": False} in self._answers]
        self._answers.clear()
        if unseeing:
            raise RunDirectoryError(f"{unseeing[0]} does not see the run directory ({path.resolve()}); {SHARED_DISK}")

    def await_begin(self) -> Message:
        """The other nodes: node 0's word to begin; answers its questions until then. Raises
        ShardwiseError: it has none to give; StoppedError: a signal came first."""
        with StopRequests() as requests:
            while True:
                self.look()
                for message in self._answers:
                    if "begin" in message:
                        return message
                    if "look" in message:
                        self.send({"node": self.node, "sees": _appears(Path(message["look"]))})
                self._answers.clear()
                if self.conclude():
                    return {"begin": False}
                if (blame := self.blame()) is not None:
                    raise WorkerFailedError(f"{blame}; the same command starts again")
                stop_if_asked(requests, "stopped before the ranks began")
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Ends the connections."""
        for link in self.links:
            link.close()


def _appears(path: Path) -> bool:
    """Whether a file is seen in time: a network's disk may show a new one late."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not (seen := path.exists()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return seen


def word_of(error: BaseException | None) -> Message:
    """What node 0 says became of the run."""
    if isinstance(error, ShardwiseError):
        return {"exit_code": error.exit_code, "message": str(error)}
    return (
        {"exit_code": 0, "message": ""} if error is None else {"exit_code": 1, "message": f"node 0 failed: {error!r}"}
    )


def stop_if_asked(requests: StopRequests, sentence: str) -> None:
    """Raises StoppedError: someone has asked to stop."""
    if requests.first is not None:
        raise StoppedError(f"{sentence}; the same command starts again", exit_code=128 + requests.first)
