"""The pages that need no server: the question with its answer, and the toy model"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from string import ascii_lowercase
from typing import Any, get_args
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shardwise import api
from shardwise.api.learn import pages as parts
from shardwise.api.learn import toy
from shardwise.errors import InputError
from shardwise.spec.job.keys import Goal, Method
from shardwise.spec.layout.axes import STRATEGIES
from shardwise.spec.plan.forecast import Plan, verdict
from shardwise.spec.plan.offers import format_dollars
from shardwise.spec.plan.timeline import KIND_WORDS, Timeline
from shardwise.units import format_bytes, format_count, format_seconds
from shardwise.web.answers import Answer, Answers
from shardwise.web.model_choices import Models
from shardwise.web.question import FIELDS, FOLDED, GENERATE, WebQuestion

#: Where pages are: of the server, and of a folder of files.
SERVED = {
    "plan": "/",
    "plan_json": "/plan.json",
    "config": "/config",
    "static": "/static/",
    "runs": "/runs",
    "learn": "/learn",
}
EXPORTED = {
    "plan": "index.html",
    "plan_json": "plan.json",
    "config": "config",
    "static": "static/",
    "learn": "learn.html",
}
#: Of the report's own pages, of these, and of those in a folder alone.
SHARED, OWN = ("page.css", "page.js", "uplot.css", "uplot.min.js"), ("web.css", "web.js", "icon.svg")
OF_FOLDER = ("local.js", "worker.js", "sw.js")
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
#: Stands for the plan of a question, where a strategy of the toy may stand.
OWN_PLAN = "own"
#: Strategies in the order in which one meets them, and the toy's layers, rows and tensors.
ORDER = ("mp", "ddp", "fsdp", "tp", "pp", "zero1", "zero2")
HELD = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer states"}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What an address answers."""

    text: str
    kind: str = "text/html"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


@cache
def page_templates() -> Environment:
    """What reads the templates of the served pages."""
    loader = PackageLoader("shardwise.web")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(count=format_count, bytes=format_bytes, dollars=format_dollars)  # pyright: ignore[reportUnknownMemberType]
    return environment


def render(
    template: str,
    *,
    at: dict[str, str] = SERVED,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **context: Any,
) -> Shown:
    """A page; `at`: where the others are."""
    text = page_templates().get_template(template).render(at=at, **context)
    return Shown(text=text, status=status, headers=headers or {})


def as_json(data: Any, **answer: Any) -> Shown:
    """JSON, as small as it can be; `answer`: as `Shown` has it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Shown(text=text, kind="application/json", **answer)


class Pages:
    """Answers questions, and shows the toy; `at`: where pages are."""

    def __init__(self, models: Models, *, at: dict[str, str] = SERVED) -> None:
        self._models, self._at = models, at
        self._answers = Answers(models)

    def ask(self, query: Mapping[str, str]) -> Shown:
        """The question and its answer."""
        try:
            question = WebQuestion.of(query)
            answer = self._answers.answer(question)
        except InputError as error:
            question = WebQuestion(texts={field.name: "" for field in FIELDS})
            answer = Answer(general=tuple(problem.message for problem in error.problems))
        shown, made = query.get("copy", "job.yaml"), answer.plan
        found: dict[str, Any] = {"verdict": "", "part": "", "copied": None, "unsaid": {}, "remedies": []}
        if made is not None:
            found = {
                "verdict": _sentence(verdict(made)),
                "part": Markup(parts.plan_as_part(made, model=answer.model)),  # noqa: S704 - every value is escaped
                "copied": copied(shown, question, made, model=answer.model),
                "unsaid": unsaid(made),
                "remedies": remedies(question),
            }
        elif answer.generation is not None:
            shown = "command"
            found |= {"copied": {"command": question.command(answer.model)}}
            found |= {"remedies": [one for one in remedies(question) if "solve" not in one[1]]}
        return render(
            "ask.html",
            at=self._at,
            status=400 if made is None and answer.generation is None else 200,
            question=question,
            fields={field.name: field for field in FIELDS},
            models=[*api.known_models()],
            gpus=[(known.gpu, known.node_gpus, known.link.name) for known in api.known_gpus().values()],
            folded=FOLDED,
            recipes=_recipes(),
            methods=get_args(Method),
            goals=get_args(Goal),
            layouts=("auto", *STRATEGIES),
            solves=SOLVES,
            hardware=HARDWARE,
            answer=answer,
            tasks=("train", GENERATE),
            copies=("command",) if question.generates else ("job.yaml", "command", *api.TARGETS),
            shown=shown,
            **found,
        )

    def plan_json(self, query: Mapping[str, str]) -> Shown:
        """plan.json, as `shardwise plan --json` prints it."""
        answer = self._answers.answer(WebQuestion.of(query))
        if answer.generation is not None:
            return as_json({**answer.generation.to_json(), "model": answer.model})
        if answer.plan is None:
            return as_json({"errors": answer.by_field, "general": answer.general}, status=400)
        headers = {"content-disposition": 'attachment; filename="plan.json"'}
        return as_json(parts.plan_as_file(answer.plan, model=answer.model), headers=headers)

    def keep(self, raw: bytes) -> Shown:
        """Keeps a dropped config.json, and says under which name."""
        try:
            return as_json({"model": self._models.keep(raw)})
        except InputError as error:
            return Shown(text=str(error), kind="text/plain", status=400)

    def learn(self, query: Mapping[str, str]) -> Shown:
        """The toy model, or the plan of a question, at one moment of its step."""
        return render("learn.html", at=self._at, **self._step(query))

    def _step(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What the page shows at the place that the address names; no place is the beginning. A
        plan that has no step to show gives way to the toy, said."""
        under, gpus = query.get("under", ""), query.get("gpus", "")
        found: dict[str, Any] = {"own": None, "plan": "", "said": "", "own_fields": []}
        if under == OWN_PLAN:
            question = WebQuestion.of({**query, "task": "train"})
            made = self._answers.answer(question).plan
            drawn = None if made is None or made.best is None else api.timeline(made)
            if drawn is not None and made is not None:
                frames = toy.frames_of(drawn)
                found |= {"own": made, "plan": urlencode(question.query()), "own_fields": [*question.query().items()]}
                return {**found, **_moment(frames, drawn, query, under=under, gpus=made.hardware.get("name", ""))}
            found["said"] = "That plan has no step to show: nothing fits, or it has an error. This is the toy."
        strategies = {one.name: one for one in toy.STRATEGIES}
        under = under if under in strategies else ORDER[0]
        size = int(gpus) if gpus in map(str, toy.SIZES) else 3
        frames, drawn = toy.frames(under, size), toy.timeline_of(under, size)
        return {**found, **_moment(frames, drawn, query, under=under, gpus=size)}


def _moment(
    frames: tuple[toy.Frame, ...], drawn: Timeline, query: Mapping[str, str], *, under: str, gpus: object
) -> dict[str, Any]:
    at, strategies = query.get("at", "1"), {one.name: one for one in toy.STRATEGIES}
    is_number = at.isascii() and at.isdigit() and len(at) <= 4
    place = max(1, min(int(at), len(frames))) if is_number else 1
    frame = frames[place - 1]
    return {
        "strategies": [strategies[name] for name in ORDER],
        "strategy": strategies.get(under) or strategies.get(drawn.strategy),
        "layout": drawn.strategy,
        "under": under,
        "gpus": gpus,
        "sizes": toy.SIZES,
        "place": place,
        "count": len(frames),
        "frame": frame,
        "when": f"{format_seconds(frame.start)} to {format_seconds(frame.end)} of the step",
        "rows": range(gpus if isinstance(gpus, int) else 0),
        "letters": ascii_lowercase,
        "held": HELD,
        "words": {kind: word for kind, word in KIND_WORDS.items() if any(span.kind == kind for span in drawn.spans)},
        "in_words": partial(_in_words, size=gpus if isinstance(gpus, int) else 0),
        "chart": Markup(parts.step_chart(drawn, share=frame.share)),  # noqa: S704 - rendered with every value escaped
    }


def _in_words(held: frozenset[tuple[int, int]], *, size: int) -> str:
    """Pieces in letters: `a b c` are whole layers, `a0` is the first row of a."""
    found: list[str] = []
    for layer, letter in enumerate(ascii_lowercase[:size]):
        rows = [row for row in range(size) if (layer, row) in held]
        found += [letter] if len(rows) == size else [f"{letter}{row}" for row in rows]
    return " ".join(found) or "nothing"


def copied(shown: str, question: WebQuestion, plan: Plan, *, model: str) -> dict[str, str]:
    """A plan as what is to be copied: texts of files by name, and else sentences."""
    if shown == "command":
        return {"command": question.command(model)}
    if shown == "job.yaml":
        return {"job.yaml": api.as_yaml(question.keys(model, solved=plan.solved))}
    if shown not in api.TARGETS:
        return {"": f"There is nothing to copy as {shown[:40]!r}."}
    try:
        made = api.export_plan(plan, to=shown, path="plan.json")
    except InputError as error:
        return {"": str(error)}
    said = "\n".join([*(_sentence(one) for one in made.said), "Next:", *(f"  {line}" for line in made.run)])
    return {**made.files, "": said}


@cache
def _recipes() -> list[tuple[str, str, dict[str, str] | None]]:
    return [(*one, WebQuestion.of_recipe(one[1])) for one in api.recipes().items()]


def unsaid(plan: Plan) -> dict[str, str]:
    """Exports that a plan cannot be said in, and why."""
    found: dict[str, str] = {}
    for name in api.TARGETS:
        try:
            api.export_plan(plan, to=name, path="plan.json")
        except InputError as error:
            found[name] = str(error)
    return found


def remedies(question: WebQuestion) -> list[tuple[str, dict[str, str]]]:
    """What is tried first where nothing fits: words, and the question that they ask."""
    first = ("Try QLoRA", question.query(method="qlora", solve=""))
    if question["method"] == "qlora":
        first = ("How long may rows be?", question.query(solve="max_length"))
    if question["hardware"].lower() in ("", "any"):
        return [first]
    more, other = question.query(solve="gpus"), question.query(hardware="any", solve="")
    return [first, ("More of these GPUs", more), ("Which GPUs?", other)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")


def static_file(name: str) -> str | None:
    """A style sheet, a script or the icon; None: there is none of this name."""
    if name in SHARED:
        return parts.page_file(name)
    is_own = name in (*OWN, *OF_FOLDER)
    return (files("shardwise.web") / "static" / name).read_text(encoding="utf-8") if is_own else None
