"""A job with the text it came from, so that errors found later can name the place."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from shardwise.errors import HardwareError, InputError, ModelError, Problem, RunDirectoryError
from shardwise.spec.job.file import Override, parse_placed, read_text
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import read_json

#: In the place of a file's name, where there is none.
_FLAGS = "the flags"
#: A file with one of these keys is a plan, perhaps a damaged one; no job has any.
_OF_A_PLAN = frozenset({"candidates", "chosen", "rejected"})


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for. `text`: the job file as written; without one, the job as JSON."""

    job: Job
    text: str
    written: Places

    def where(self, *path: str | int) -> str:
        """`file:line` or flag of a key's value, or of what implies it."""
        if path[:1] == ("lora",) and not any(key.partition(".")[0] == "lora" for key in self.written.by_key):
            path = ("method",)  # there are adapters because it has some
        return self.written.where(*path)

    @contextmanager
    def blaming(self, *path: str) -> Generator[None]:
        """Errors raised inside about model, hardware or folder name the place of this key."""
        try:
            yield
        except (HardwareError, ModelError, RunDirectoryError) as error:
            problems = [_placed(problem, where=self.where(*path)) for problem in error.problems]
            raise type(error)(problems, total=error.total) from None

    @contextmanager
    def placing(self) -> Generator[None]:
        """Errors raised inside that begin with a key (`data.max_length is 9`) name its place."""
        try:
            yield
        except InputError as error:
            keys = [((p.message.split(maxsplit=1) or [""])[0].strip(":,").split("."), p) for p in error.problems]
            problems = [p if p.where else _placed(p, where=self.where(*key)) for key, p in keys]
            raise type(error)(problems, total=error.total) from None


def _placed(problem: Problem, *, where: str) -> Problem:
    return Problem(where=where, message=str(problem))


def read_request(job: Job | str | Path | None, *, overrides: Sequence[str | Override] = ()) -> Request:
    """Takes a job, or reads a job file, or the job and chosen candidate of a plan.json; None where
    overrides say it all. Raises InputError: the file is neither, or an override is wrong."""
    if job is None:
        return _of_text("{}\n", file=_FLAGS, overrides=overrides)
    if isinstance(job, Job):
        return _of_text(_as_text(job.to_json()), file="the job", overrides=overrides)
    if is_plan(job):
        return _of_text(_text_of_plan(job), file=f"the job of {job}", overrides=overrides)
    return _of_text(read_text(job), file=str(job), overrides=overrides)


def is_plan(path: str | Path) -> bool:
    """Whether a file is a plan.json, perhaps a damaged one."""
    return bool(_OF_A_PLAN & (read_json(Path(path)) or {}).keys())


def _of_text(text: str, *, file: str, overrides: Sequence[str | Override]) -> Request:
    job, places = parse_placed(text, file=file, overrides=overrides)
    if file == _FLAGS:  # which have no lines
        places = places.overridden((), where=_FLAGS)
    return Request(job=job, text=text, written=places)


def _text_of_plan(path: str | Path) -> str:
    plan = read_plan(path)
    if plan.best is None:
        message = "this plan chose nothing, because nothing fits; plan again with other hardware or a smaller job"
        raise InputError.at(str(path), message)
    return _as_text(restricted_to(plan.job, plan.best.execution))


def restricted_to(job: dict[str, Any], execution: Execution) -> dict[str, Any]:
    """A job that leaves nothing open: it asks for exactly this execution."""
    chosen = {name: value for name, value in execution.to_json().items() if name in _LEFT_TO_THE_PLANNER}
    train = cast(dict[str, Any], job.get("train") or {})
    return {**job, "layout": execution.layout.to_json(), "train": {**train, **chosen}}


_DERIVED = {"layout", "gradient_accumulation_steps", "reduce_once"}
_LEFT_TO_THE_PLANNER = {field.name for field in fields(Execution)} - _DERIVED


def _as_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
