"""Reads a job file: YAML and `--set` overrides become a Job, or an error that names every line to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from shardwise.errors import JobError, Problem
from shardwise.spec.job import Job
from shardwise.spec.job_errors import problems_in
from shardwise.spec.located import Located, parse_yaml


def read_job(path: str | Path, *, overrides: list[str] | None = None) -> Job:
    """Reads a job file, then applies `--set key.path=value` overrides.

    Relative data, model and output paths stay relative to the working directory, as in the shell.

    Raises:
        JobError: the file cannot be read or is not a valid job; one problem per place, each with `file:line`.
    """
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise JobError(Problem(where=file, message="there is no such file; write a job file or name another")) from None
    except IsADirectoryError:
        raise JobError(Problem(where=file, message="is a folder; expected a YAML job file")) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise JobError(
            Problem(where=f"{file}:{line}", message="is not UTF-8 text; save the job file as UTF-8")
        ) from None
    except OSError as error:
        raise JobError(Problem(where=file, message=f"cannot be read: {error.strerror}")) from None
    return parse_job(text, file=file, overrides=overrides)


def parse_job(text: str, *, file: str = "job.yaml", overrides: list[str] | None = None) -> Job:
    """Like `read_job`, from text."""
    located = parse_yaml(text, file=file)
    value: object = located.value
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise JobError(
            Problem(where=f"{file}:1", message=f"found {found}; expected keys such as model:, data:, method:")
        )
    data = cast(dict[str, Any], value)
    origins: dict[tuple[str | int, ...], str] = {}
    for override in overrides or []:
        _apply_override(data, override, origins)
    return job_from_data(data, located=located, origins=origins)


def job_from_data(
    data: dict[str, Any], *, located: Located | None = None, origins: dict[tuple[str | int, ...], str] | None = None
) -> Job:
    """Validates plain data as a job; `located` and `origins` say where each key came from.

    Raises:
        JobError: one problem per invalid key.
    """
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        raise JobError(problems_in(data, error, root=Job, located=located, origins=origins or {})) from None


def _apply_override(data: dict[str, Any], override: str, origins: dict[tuple[str | int, ...], str]) -> None:
    where = f"--set {override}"
    name, equals, text = override.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise JobError(Problem(where=where, message="expected KEY=VALUE, for example --set train.learning_rate=1e-4"))
    try:
        value = parse_yaml(text, file="--set").value
    except JobError as error:
        raise JobError(Problem(where=where, message=error.problems[0].message)) from None
    at = data
    for depth, key in enumerate(path[:-1], start=1):
        below = at.get(key)
        if not isinstance(below, dict):
            at[key] = below = {}
            origins[path[:depth]] = where
        at = cast(dict[str, Any], below)
    at[path[-1]] = value
    origins[path] = where
