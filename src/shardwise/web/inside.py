"""What the worker of a browser calls: pages of a folder, answered where there is no server"""

from functools import cache
from urllib.parse import parse_qsl

from jinja2 import FileSystemBytecodeCache

from shardwise import api
from shardwise.errors import InputError
from shardwise.web.model_choices import Models
from shardwise.web.pages import EXPORTED, Pages, page_templates, render


@cache
def _pages() -> Pages:
    return Pages(Models(None), at=EXPORTED)


def take_templates(folder: str, *, compiling: bool = False) -> None:
    """From now on, those Jinja compiled into this folder; `compiling`: all are compiled into it."""
    for environment in (page_templates(), api.report_templates()):
        environment.bytecode_cache = FileSystemBytecodeCache(folder)
        for name in environment.list_templates() if compiling else ():
            environment.get_template(name)


def answer(page: str, query: str, body: bytes | None = None) -> tuple[int, str, str]:
    """Status, kind and text of an address; `query`: behind its `?`, `body`: a dropped file."""
    pages = _pages()
    known = {EXPORTED["plan_json"]: pages.plan_json, EXPORTED["learn"]: pages.learn}
    try:
        if page == EXPORTED["config"]:
            found = pages.keep(bytes(body or b""))
        else:
            found = known.get(page, pages.ask)(dict(parse_qsl(query, keep_blank_values=True)))
    except InputError as error:
        sentences = str(error).splitlines()
        found = render("message.html", at=EXPORTED, status=400, title="This cannot be shown", sentences=sentences)
    # Names of models may hold halves of characters, which no page can.
    return found.status, found.kind, found.text.encode("utf-8", errors="replace").decode()
