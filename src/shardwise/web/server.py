"""Listens: a socket on this machine, or on another address with a token, and uvicorn behind it"""

import gc
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from shardwise.errors import InputError
from shardwise.web.app import build_app
from shardwise.web.guard import is_loopback

_LEAST_LETTERS = 16


def listen(folder: Path, *, host: str, port: int, token: str | None, told: Callable[[str], None]) -> None:
    """Serves until interrupted. Raises InputError: no such folder or address, a short token."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; name the one that runs lie below")
    if token is not None and (len(token) < _LEAST_LETTERS or not token.isascii() or not token.isalnum()):
        raise InputError(f"--token: expected at least {_LEAST_LETTERS} letters and digits")
    if token is None and not is_loopback(host):
        token = secrets.token_hex(16)
    listening = _socket(host, port)
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    told(f"Shardwise is at http://{shown}:{port}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        build_app(folder, host=host, port=port, token=token),  # pyright: ignore[reportArgumentType]
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        http="h11",
        ws="none",
        limit_concurrency=64,
        h11_max_incomplete_event_size=32 * 1024,  # bytes of a request's head
        timeout_graceful_shutdown=2,
    )
    # Modules stay, and an answer's many objects live until it ends: no cycle search for either.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    uvicorn.Server(config).run(sockets=[listening])


def _socket(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise InputError(f"{host}:{port} cannot be listened on: {error.strerror or error}; try --port 0") from None
    return listening
