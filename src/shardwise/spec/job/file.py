"""Reads a job file: YAML and `--set` overrides become a Job, or an error naming every bad line."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from pydantic import ValidationError

from shardwise.errors import JobError
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Places
from shardwise.spec.job.validation_errors import problems_in
from shardwise.spec.job.yaml import parse_yaml


@dataclass(frozen=True, kw_only=True)
class Override:
    """One value that did not come from the job file. `text`: `key.path=value`, the value as YAML;
    `where`: how the user wrote it: `--set train.seed=1`, `--hardware cpu:2`."""

    text: str
    where: str

    @property
    def path(self) -> tuple[str, ...]:
        """The key it sets."""
        return tuple(self.text.partition("=")[0].strip().split("."))

    @classmethod
    def of_flag(cls, flag: str, *, key: str, value: str | int) -> Self:
        """What a flag of its own sets."""
        return cls(text=f"{key}={json.dumps(value)}", where=f"{flag} {value}")

    @classmethod
    def of(cls, given: str | Self) -> Self:
        """A `--set` as the user wrote it."""
        return cls(text=given, where=f"--set {given}") if isinstance(given, str) else given


def read_job(path: str | Path) -> Job:
    """Reads a job file. Relative data, model and output paths stay relative to the working
    directory, as in the shell. Raises JobError: the file cannot be read or is not a valid job; one
    problem per place, each with `file:line`."""
    return parse_job(read_text(path), file=str(path))


def read_text(path: str | Path) -> str:
    """The text of a job file. Raises JobError: it cannot be read."""
    file = str(path)
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError.at(file, "there is no such file; write a job file or name another") from None
    except IsADirectoryError:
        raise JobError.at(file, "is a folder; expected a YAML job file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobError.at(f"{file}:{line}", "is not UTF-8 text; save the job file as UTF-8") from None
    except OSError as error:
        raise JobError.at(file, f"cannot be read: {error.strerror}") from None


def parse_job(text: str, *, file: str = "job.yaml", overrides: Sequence[str | Override] = ()) -> Job:
    """Like `read_job`, from text; then applies `--set key.path=value` overrides."""
    return parse_placed(text, file=file, overrides=overrides)[0]


def parse_placed(text: str, *, file: str, overrides: Sequence[str | Override] = ()) -> tuple[Job, Places]:
    """A job, and where each of its keys was written."""
    located = parse_yaml(text, file=file)
    value: object = located.value
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise JobError.at(f"{file}:1", f"found {found}; expected keys such as model:, data:, method:")
    data, places = cast(dict[str, Any], value), located.places
    for override in overrides:
        places = _apply_override(data, Override.of(override), places)
    return job_from_data(data, places=places), places


def job_from_data(data: dict[str, Any], *, places: Places | None = None) -> Job:
    """Validates plain data as a job. Raises JobError: one problem per invalid key."""
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        raise JobError(problems_in(data, error, root=Job, places=places)) from None


def _apply_override(data: dict[str, Any], override: Override, places: Places) -> Places:
    _, equals, text = override.text.partition("=")
    path, where = override.path, override.where
    if not equals or not all(path):
        raise JobError.at(where, "expected KEY=VALUE, for example --set train.learning_rate=1e-4")
    try:
        value = parse_yaml(text, file="--set").value
    except JobError as error:
        raise JobError.at(where, error.problems[0].message) from None
    at = data
    for depth, key in enumerate(path[:-1], start=1):
        below = at.get(key)
        if not isinstance(below, dict):
            at[key] = below = {}
            places = places.overridden(path[:depth], where=where)
        at = cast(dict[str, Any], below)
    at[path[-1]] = value
    return places.overridden(path, where=where)
