"""The connection between the launchers of two machines: lines of JSON, and whether the other end is still there.

It breaks when the other end ends, however it ends. Where a cable is cut nothing breaks, but the kernel says for how
long nothing has come.
"""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress
from typing import Any

#: The kernel asks this often whether the other machine is there, and gives up after ten minutes.
_KEEP_ALIVE_SECONDS, _KEEP_ALIVE_COUNT = 5, 120

#: Of Linux's `struct tcp_info`: milliseconds since the last acknowledgement came.
_LAST_ACK = struct.Struct("=56xI")

Message = dict[str, Any]


class NodeConnection:
    """The connection between two nodes' launchers, for lines of JSON. `node`, `name`: who is at the other end; `lost`:
    it has broken; `ended`: all ranks there have ended."""

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
