"""The pages as one application: the question and its answer, runs, the toy model, and a dropped config.json."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from shardwise import api
from shardwise.errors import InputError
from shardwise.spec.job.keys import Goal, Method
from shardwise.spec.layout.axes import STRATEGIES
from shardwise.spec.plan.forecast import Plan, verdict
from shardwise.spec.plan.timeline import KIND_WORDS
from shardwise.units import format_count, format_seconds
from shardwise.web.answers import Answer, Answers
from shardwise.web.guard import Guard
from shardwise.web.models import Models
from shardwise.web.question import FIELDS, WebQuestion
from shardwise.web.runs import Runs, events, stamp

#: Of the report's own pages, and of these.
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SHARED, _OWN = ("page.css", "page.js", "uplot.css", "uplot.min.js"), ("web.css", "web.js", "icon.svg")
HARDWARE = (
    *("any", "1x RTX-4090", "2x RTX-4090", "4x RTX-6000-Ada", "4x L40S", "8x A100-80GB", "8x H100-SXM"),
    *("2 x 8x H100-SXM", "16 x 8x H100-SXM", "8x H200", "8x B200", "cpu:4"),
)
#: What can be solved for, in words.
SOLVES = {
    "": "nothing: as it is asked",
    "max_length": "the longest sequences",
    "micro_batch_size": "the largest micro-batch",
    "lora.r": "the largest LoRA rank",
    "gpus": "the fewest GPUs",
}
MOST_COMPARED = 4
#: Strategies in the order in which one meets them, and how the toy's layers, rows and tensors are called.
ORDER = ("mp", "ddp", "fsdp", "tp", "pp", "zero1", "zero2")
LETTERS, ROWS = ("a", "b", "c"), range(3)
HELD = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer states"}
#: Seconds for a file of a page's size.
LONGEST_UPLOAD = 10


@cache
def _environment() -> Environment:
    loader = PackageLoader("shardwise.web")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(count=format_count)  # pyright: ignore[reportUnknownMemberType]
    return environment


def render(template: str, *, status: int = 200, headers: dict[str, str] | None = None, **context: Any) -> HTMLResponse:
    """A page."""
    text = _environment().get_template(template).render(**context)
    # Names of files and models may hold halves of characters, which no page can.
    return HTMLResponse(text.encode("utf-8", errors="replace"), status_code=status, headers=headers)


def build_app(folder: Path, *, host: str, port: int, token: str | None) -> Guard:
    """The application that serves what lies below a folder, behind its guard."""
    pages = Pages(folder)
    routes = [
        Route("/", pages.ask),
        Route("/plan.json", pages.plan_json),
        Route("/config", pages.take_config, methods=["POST"]),
        Route("/runs", pages.runs),
        Route("/run", pages.run),
        Route("/compare", pages.compare),
        Route("/learn", pages.learn),
        Route("/static/{name}", static),
    ]

    def refused(_: Request, error: Exception) -> HTMLResponse:
        return render("message.html", status=400, title="This cannot be shown", sentences=str(error).splitlines())

    def missing(_: Request, __: Exception) -> HTMLResponse:
        return render("message.html", status=404, title="There is no such page", sentences=[])

    handlers: Any = {InputError: refused, 404: missing}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host=host, port=port, token=token)


class Pages:
    """What each address answers. Functions that plan or read runs are run in threads."""

    def __init__(self, folder: Path) -> None:
        self._models, self._runs = Models(folder), Runs(folder)
        self._answers = Answers(self._models)

    def ask(self, request: Request) -> Response:
        """The question and its answer."""
        query = request.query_params
        try:
            question = WebQuestion.of(query)
            answer = self._answers.answer(question)
        except InputError as error:
            question = WebQuestion(texts={field.name: "" for field in FIELDS})
            answer = Answer(general=tuple(problem.message for problem in error.problems))
        shown, made = query.get("copy", "job.yaml"), answer.plan
        found: dict[str, Any] = {"verdict": "", "why": "", "part": "", "copied": None}
        if made is not None:
            found = {
                "verdict": _sentence(verdict(made)),
                "why": f"{api.main_reason(made)}.",
                "part": Markup(api.plan_as_part(made, model=answer.model)),  # noqa: S704 - every value is escaped
                "copied": copied(shown, question, made, model=answer.model),
            }
        return render(
            "ask.html",
            status=400 if made is None else 200,
            question=question,
            fields={field.name: field for field in FIELDS},
            models=[known.name for known in api.known_models()],
            gpus=[(gpu.name, gpu.memory_bytes) for gpu in api.known_gpus()],
            methods=get_args(Method),
            goals=get_args(Goal),
            layouts=("auto", *STRATEGIES),
            solves=SOLVES,
            hardware=HARDWARE,
            answer=answer,
            copies=("job.yaml", "command", *api.export_targets()),
            shown=shown,
            **found,
        )

    def plan_json(self, request: Request) -> Response:
        """plan.json, as `shardwise plan --json` prints it."""
        answer = self._answers.answer(WebQuestion.of(request.query_params))
        if answer.plan is None:
            return JSONResponse({"errors": answer.by_field, "general": answer.general}, status_code=400)
        headers = {"content-disposition": 'attachment; filename="plan.json"'}
        return JSONResponse(api.plan_as_file(answer.plan, model=answer.model), headers=headers)

    async def take_config(self, request: Request) -> Response:
        """Keeps a dropped config.json, and says under which name."""
        try:
            async with asyncio.timeout(LONGEST_UPLOAD):
                raw = await request.body()  # of the length that the guard has looked at
            return JSONResponse({"model": await run_in_threadpool(self._models.keep, raw)})
        except TimeoutError:
            return PlainTextResponse(f"no whole file came in {LONGEST_UPLOAD} s", status_code=408)
        except InputError as error:
            return PlainTextResponse(str(error), status_code=400)

    def runs(self, _: Request) -> Response:
        """All runs."""
        return render("runs.html", runs=self._runs.lines(), folder=str(self._runs.folder), most=MOST_COMPARED)

    def run(self, request: Request) -> Response:
        """One run: its report as far as it has come, and what happened; or its plan."""
        name = request.query_params.get("name", "")
        path = self._runs.find(name)
        if request.query_params.get("show") == "plan":
            part = Markup(api.plan_as_part(api.plan_of_run(path)))  # noqa: S704 - rendered with every value escaped
            return render("run.html", name=name, shows="plan", part=part, curves=None, events=[], live=False)

        def page() -> dict[str, Any]:
            found = api.read_report(path)
            part, curves = map(Markup, api.report_as_part(found))
            live = found.outcome.state in api.GOES_ON
            return {"name": name, "part": part, "curves": curves, "events": events(path), "live": live}

        return _if_changed(request, [path], "run.html", page, shows="report")

    def compare(self, request: Request) -> Response:
        """Several runs side by side."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(names) <= MOST_COMPARED:
            raise InputError(f"{len(names)} runs are named; 2 to {MOST_COMPARED} are put side by side")
        runs = [(name, self._runs.find(name)) for name in names]

        def page() -> dict[str, Any]:
            part, curves, live = api.runs_as_part(runs)
            return {"names": names, "part": Markup(part), "curves": Markup(curves), "live": live}  # noqa: S704

        return _if_changed(request, [path for _, path in runs], "compare.html", page)

    def learn(self, request: Request) -> Response:
        """The toy model, at one moment of its step."""
        return render("learn.html", **_learn_page(request.query_params))


def _if_changed(
    request: Request, paths: Sequence[Path], template: str, page: Callable[[], dict[str, Any]], **context: Any
) -> Response:
    """The page of runs, or that none of them has written anything since it was last asked for."""
    tag = f'"{"-".join(map(stamp, paths))}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return render(template, headers={"etag": tag}, **context, **page())


def _learn_page(query: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows at the place that the address names; what it does not have is taken as the beginning."""
    strategies = {one.name: one for one in api.STRATEGIES}
    under = query.get("under", "")
    under = under if under in strategies else ORDER[0]
    found, at = api.frames(under), query.get("at", "1")
    is_number = at.isascii() and at.isdigit() and len(at) <= 4
    place = max(1, min(int(at), len(found))) if is_number else 1
    frame = found[place - 1]
    return {
        "strategies": [strategies[name] for name in ORDER],
        "strategy": strategies[under],
        "under": under,
        "place": place,
        "count": len(found),
        "frame": frame,
        "when": f"{format_seconds(frame.start)} to {format_seconds(frame.end)} of the step",
        "letters": LETTERS,
        "rows": ROWS,
        "held": HELD,
        "words": KIND_WORDS,
        "in_words": _in_words,
        "chart": Markup(api.toy_chart(under, share=frame.share)),  # noqa: S704 - rendered with every value escaped
    }


def _in_words(held: frozenset[tuple[int, int]]) -> str:
    """Pieces in letters: `a b c` are whole layers, `a0` is the first row of a."""
    found: list[str] = []
    for layer, letter in enumerate(LETTERS):
        rows = [row for row in ROWS if (layer, row) in held]
        found += [letter] if len(rows) == len(ROWS) else [f"{letter}{row}" for row in rows]
    return " ".join(found) or "nothing"


def copied(shown: str, question: WebQuestion, plan: Plan, *, model: str) -> dict[str, str]:
    """A plan as what is to be copied: the texts of files by name, and what else there is to say, as sentences."""
    if shown == "command":
        return {"command": question.command(model)}
    if shown == "job.yaml":
        return {"job.yaml": api.job_yaml(question.keys(model, solved=plan.solved))}
    if shown not in api.export_targets():
        return {"": f"There is nothing to copy as {shown[:40]!r}."}
    try:
        made = api.export_plan(plan, to=shown, path="plan.json")
    except InputError as error:
        return {"": str(error)}
    said = "\n".join([*(_sentence(one) for one in made.said), "Next:", *(f"  {line}" for line in made.run)])
    return {**made.files, "": said}


def _sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def static(request: Request) -> Response:
    """A style sheet or a script, by a name that is known."""
    name: str = request.path_params["name"]
    if name not in (*_SHARED, *_OWN):
        return PlainTextResponse("there is no such file", status_code=404)
    own = files("shardwise.web") / "static" / name
    text = api.page_file(name) if name in _SHARED else own.read_text(encoding="utf-8")
    return PlainTextResponse(text, media_type=_KINDS[name.rpartition(".")[2]])
