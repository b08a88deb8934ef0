"""The pages as one application behind its guard, on a socket: each address, runs of a folder."""

import asyncio
import gc
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shardwise.api.learn import pages as parts
from shardwise.errors import InputError
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import RunDirectory
from shardwise.web.guard import Guard, is_loopback
from shardwise.web.model_choices import Models
from shardwise.web.pages import Pages, Shown, render, static_file
from shardwise.web.runs import Runs, events, stamp

_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST_COMPARED = 4
#: Seconds for a file of a page's size.
LONGEST_UPLOAD = 10


def build_app(folder: Path, *, host: str, port: int, token: str | None) -> Guard:
    """The application that serves what lies below a folder, behind its guard."""
    pages, runs = Pages(Models(folder)), RunPages(folder)
    routes = [
        Route("/", _of_query(pages.ask)),
        Route("/plan.json", _of_query(pages.plan_json)),
        Route("/config", _taking(pages.keep), methods=["POST"]),
        Route("/runs", runs.runs),
        Route("/run", runs.run),
        Route("/compare", runs.compare),
        Route("/learn", _of_query(pages.learn)),
        Route("/static/{name}", static),
    ]

    def refused(_: Request, error: Exception) -> Response:
        found = render("message.html", status=400, title="This cannot be shown", sentences=str(error).splitlines())
        return _response(found)

    def missing(_: Request, __: Exception) -> Response:
        return _response(render("message.html", status=404, title="There is no such page", sentences=[]))

    handlers: Any = {InputError: refused, 404: missing}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host=host, port=port, token=token)


def _response(shown: Shown) -> Response:
    # Names of files and models may hold halves of characters, which no page can.
    text = shown.text.encode("utf-8", errors="replace")
    return Response(text, status_code=shown.status, headers=shown.headers, media_type=shown.kind)


def _of_query(page: Callable[[Mapping[str, str]], Shown]) -> Callable[[Request], Response]:
    """What plans is run in a thread, as Starlette runs all functions."""
    return lambda request: _response(page(request.query_params))


def _taking(keep: Callable[[bytes], Shown]) -> Any:
    async def take(request: Request) -> Response:
        try:
            async with asyncio.timeout(LONGEST_UPLOAD):
                raw = await request.body()  # of the length that the guard has looked at
        except TimeoutError:
            return PlainTextResponse(f"no whole file came in {LONGEST_UPLOAD} s", status_code=408)
        return _response(await run_in_threadpool(keep, raw))

    return take


class RunPages:
    """What the addresses of runs answer, in threads."""

    def __init__(self, folder: Path) -> None:
        self._runs = Runs(folder)

    def runs(self, _: Request) -> Response:
        """All runs."""
        lines, folder = self._runs.lines(), str(self._runs.folder)
        return _response(render("runs.html", runs=lines, folder=folder, most=MOST_COMPARED))

    def run(self, request: Request) -> Response:
        """One run: its report as far as it has come, and what happened; or its plan."""
        name = request.query_params.get("name", "")
        path = self._runs.find(name)
        if request.query_params.get("show") == "plan":
            part = Markup(parts.plan_as_part(read_plan(RunDirectory(path).plan), titled=True))  # noqa: S704 - rendered with every value escaped
            return _response(render("run.html", name=name, shows="plan", part=part))

        def page() -> dict[str, Any]:
            found = parts.read_report(path)
            part, curves = map(Markup, parts.report_as_part(found))
            live = found.outcome.state in parts.GOES_ON
            return {"name": name, "part": part, "curves": curves, "events": events(path), "live": live}

        return _if_changed(request, [path], "run.html", page, shows="report")

    def compare(self, request: Request) -> Response:
        """Several runs side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(names) <= MOST_COMPARED:
            raise InputError(f"{len(names)} runs are named; 2 to {MOST_COMPARED} are put side by side")
        runs = [(name, self._runs.find(name)) for name in names]

        def page() -> dict[str, Any]:
            part, curves, live = parts.runs_as_part(runs)
            return {"names": names, "part": Markup(part), "curves": Markup(curves), "live": live}  # noqa: S704

        return _if_changed(request, [path for _, path in runs], "compare.html", page)


def _if_changed(
    request: Request, paths: Sequence[Path], template: str, page: Callable[[], dict[str, Any]], **context: Any
) -> Response:
    """The page of runs, or that none of them has written anything since it was last asked for."""
    tag = f'"{"-".join(map(stamp, paths))}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return _response(render(template, headers={"etag": tag}, **context, **page()))


def static(request: Request) -> Response:
    """A style sheet or a script, by a name that is known."""
    name: str = request.path_params["name"]
    text = static_file(name)
    if text is None:
        return PlainTextResponse("there is no such file", status_code=404)
    return PlainTextResponse(text, media_type=_KINDS[name.rpartition(".")[2]])


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
