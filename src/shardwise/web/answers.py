"""Answers: the plan of a question, made once for as long as it is remembered, or what is wrong with each field."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from shardwise import api
from shardwise.errors import InputError, Problem
from shardwise.spec.plan.forecast import Plan
from shardwise.web.models import DROPPED, Models, catalogue
from shardwise.web.question import NAMES, SOLVE, WebQuestion

#: Plans that are remembered: going back and changing what is copied make none anew.
_REMEMBERED = 24
#: What a dropped file is called outside of the server.
SAVED_AS = "config.json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The plan of a question and its model's name in files and commands, or sentences: by field, and of no field."""

    plan: Plan | None = None
    model: str = ""
    by_field: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    general: tuple[str, ...] = ()


class Answers:
    """Answers questions, one after the other."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._turn = threading.Lock()
        self._made: OrderedDict[tuple[str, ...], Plan] = OrderedDict()

    def answer(self, question: WebQuestion) -> Answer:
        """What `shardwise plan` says to it."""
        try:
            model = self._models.find(question["model"], hub=question.hub) if question["model"] else ""
        except InputError as error:
            return _refused([Problem(where="model", message=str(error))])
        try:
            dropped = question["model"].startswith(DROPPED)  # where it lies here is nobody's concern
            return Answer(plan=self._plan(question, model), model=SAVED_AS if dropped else model)
        except InputError as error:
            return _refused(error.problems, place=model)

    def _plan(self, question: WebQuestion, model: str) -> Plan:
        overrides = question.overrides(model)
        key = (question.solve or "", *(one.text for one in overrides))
        # A folder's configuration may change; the catalogue and what was dropped do not.
        lasting = model.lower() in catalogue() or question["model"].startswith(DROPPED)
        with self._turn:
            made = self._made.pop(key, None) or api.plan(overrides=overrides, solve=question.solve)
            if lasting:
                self._made[key] = made
            while len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        return made


def _refused(problems: tuple[Problem, ...] | list[Problem], *, place: str = "") -> Answer:
    """Each sentence beside the field that it is about."""
    by_field: dict[str, list[str]] = {}
    general: list[str] = []
    for problem in problems:
        message = problem.message.replace(place, SAVED_AS) if place.startswith("/") else problem.message
        where = "solve" if (problem.where or "").startswith(SOLVE) else problem.where
        (by_field.setdefault(where, []) if where in NAMES else general).append(message)
    return Answer(by_field=by_field, general=tuple(general))
