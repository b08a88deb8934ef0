"""The program serving a folder, as a real process, and requests of it over real sockets."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode


@dataclass(frozen=True, kw_only=True)
class Said:
    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Served:
    process: subprocess.Popen[str]
    port: int
    folder: Path
    token: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, *pairs: tuple[str, str], **query: str) -> Said:
        asked = urlencode([*pairs, *query.items()])
        return self.ask("GET", f"{path}?{asked}" if asked else path)

    def ask(self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None) -> Said:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return Said(
                status=answer.status,
                headers={name.lower(): value for name, value in answer.getheaders()},
                text=answer.read().decode("utf-8"),
            )
        finally:
            connection.close()

    def raw(self, sent: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(sent)
            found = b""
            while chunk := connection.recv(65536):
                found += chunk
        return found.decode("utf-8", errors="replace")


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "shardwise", "serve", str(folder), "--port", "0", *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"Shardwise is at http://[^/]+:(\d+)/(?:\?token=(\w+))?\n", line)
            assert found, line
            yield Served(process=process, port=int(found[1]), folder=folder, token=found[2])
        finally:
            process.send_signal(signal.SIGINT)
