"""Answers: the plan of a question, remembered for a while, or what is wrong with each field."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise import api
from shardwise.errors import InputError, Problem
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.plan.generation import Generation
from shardwise.web.model_choices import DROPPED, Models, catalogue
from shardwise.web.question import FOR, GENERATE, NAMES, SOLVE, WebQuestion

#: Plans that are remembered: going back and changing what is copied make none anew.
_REMEMBERED = 24
#: What a dropped file is called outside of the server.
SAVED_AS = "config.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The plan of a question, or what generating needs, and its model's name in files and commands;
    or sentences: by field, and of no field."""

    plan: Plan | None = None
    generation: Generation | None = None
    model: str = ""
    by_field: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    general: tuple[str, ...] = ()


class Answers:
    """Answers questions, one after the other."""

    def __init__(self, models: Models) -> None:
        self._models, self._turn = models, threading.Lock()
        self._made: dict[tuple[str, ...], Plan] = {}

    def answer(self, question: WebQuestion) -> Answer:
        """What `shardwise plan` says to it."""
        asked = question["model"]
        if question["task"] not in ("", "train", GENERATE):
            message = f"{question['task'][:40]!r} is no task; expected train or {GENERATE}"
            return _refused([Problem(where="task", message=message)])
        try:
            model = self._models.find(asked, hub=question.hub) if asked else ""
        except InputError as error:
            others = [one for one in api.problems(question.overrides(asked)) if one.where != "model"]
            return _refused([Problem(where="model", message=str(error)), *others])
        try:
            # Where a dropped file lies here is nobody's concern.
            named = SAVED_AS if asked.startswith(DROPPED) else model
            if question.generates:
                with self._turn:
                    return Answer(generation=api.generation(overrides=question.overrides(model)), model=named)
            return Answer(plan=self._plan(question, model), model=named)
        except InputError as error:
            said = {(one.where, one.message) for one in error.problems}
            others = [one for one in api.problems(question.overrides(model)) if (one.where, one.message) not in said]
            return _refused([*error.problems, *others], place=model)

    def _plan(self, question: WebQuestion, model: str) -> Plan:
        overrides, what_if = question.overrides(model), question.what_if and question.is_of_one_hardware
        key = (question.solve or "", question["for"], str(what_if), *(one.text for one in overrides))
        # A folder's configuration may change; the catalogue and what was dropped do not.
        lasting = model.lower() in catalogue() or question["model"].startswith(DROPPED)
        with self._turn:
            made = self._made.pop(key, None) or api.plan(
                overrides=overrides, solve=question.solve, asks_what_if=what_if, target=question["for"] or None
            )
            if lasting:
                self._made[key] = made
            for old in [*self._made][:-_REMEMBERED]:
                del self._made[old]
        return made


def _refused(problems: Sequence[Problem], *, place: str = "") -> Answer:
    by_field: dict[str, list[str]] = {}
    general: list[str] = []
    for problem in problems:
        message = problem.message.replace(place, SAVED_AS) if place.startswith("/") else problem.message
        where = {SOLVE: "solve", FOR: "for"}.get((problem.where or "").partition(" ")[0], problem.where)
        (by_field.setdefault(where, []) if where in NAMES else general).append(message)
    return Answer(by_field=by_field, general=tuple(general))
