"""Reads plan.json: a Plan that can be executed, or sentences that say what is wrong with it."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from shardwise.errors import InputError, Problem, quoted
from shardwise.spec.job.strict import adapter
from shardwise.spec.job.validation_errors import problems_in
from shardwise.spec.layout.execution import Execution, accumulation_steps
from shardwise.spec.plan.forecast import VERSION, Candidate, Plan

Plain = dict[str, Any]


def read_plan(path: str | Path) -> Plan:
    """Reads plan.json. Raises InputError: missing, no JSON, or a problem for each wrong key."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg} in column {error.colno}; make it again by `shardwise plan --output`"
        raise InputError.at(f"{path}:{error.lineno}", message) from None
    except (ValueError, RecursionError):
        raise InputError.at(str(path), "is not JSON that `shardwise plan --output` writes; make it again") from None
    try:
        return plan_from_json(data)
    except InputError as error:
        problems = [Problem(where=str(path), message=problem.message) for problem in error.problems]
        raise InputError(problems, total=error.total) from None


def plan_from_json(data: Any) -> Plan:
    """Plain data as a Plan. Raises InputError: another version, or a problem for each wrong key."""
    if not isinstance(data, dict):
        raise InputError(f"is {quoted(data)}; expected what `shardwise plan --output` writes")
    found = cast(Plain, data)
    version = found.get("version")
    if type(version) is bool or version != VERSION:
        said = "the key 'version' is missing" if "version" not in found else f"version is {quoted(version)}"
        raise InputError(f"{said}; expected {VERSION}, the one that this program reads: make the plan again with it")
    nested = _nested(found)
    try:
        # As JSON, in which lists are tuples and objects are dataclasses.
        plan = adapter(Plan).validate_json(json.dumps(nested))
    except ValidationError as error:
        raise InputError([_as_written(one) for one in problems_in(nested, error, root=Plan, places=None)]) from None
    plan = replace(plan, **{key: found[key] for key in ("job", "hardware", "model")})
    flaws = [*_flaws_of_facts(plan), *_flaws_of_choice(plan)]
    if flaws:
        raise InputError([Problem(message=flaw) for flaw in flaws])
    return plan


#: What a candidate has beside its execution, and its required keys: `reduce_once` was added later.
_OF_CANDIDATE = {field.name for field in fields(Candidate)} - {"execution"}
_OF_EXECUTION = {field.name for field in fields(Execution)} - {"reduce_once"}


def _nested(found: Plain) -> Plain:
    """plan.json in a `Plan`'s form: candidates have an execution, and what open hardware added.
    Raises InputError: a candidate lacks a key of its execution, which has a default elsewhere."""
    nested, lacking, candidates = dict(found), list[str](), found.get("candidates")
    if isinstance(candidates, list):
        nested["candidates"] = [_with_execution(one) for one in cast(list[Any], candidates)]
        for index, one in enumerate(nested["candidates"]):
            names = _OF_EXECUTION - _section(one, "execution").keys() if isinstance(one, dict) else ()
            lacking += [f"the key 'candidates.{index}.{name}' is missing" for name in sorted(names)]
    if lacking:
        raise InputError([Problem(message=one) for one in lacking])
    if "hardware_options" in found:
        prices = {f"price_{name}": _section(found, "prices").get(name) for name in ("date", "source")}
        offers = {"goal": _section(found, "job").get("goal"), "options": found["hardware_options"]}
        offers["start_up"] = found.get("start_up")
        nested["offers"] = {**offers, **prices}
    return nested


def _section(found: Any, name: str) -> Plain:
    value: Any = found.get(name)
    return cast(Plain, value) if isinstance(value, dict) else {}


def _with_execution(one: Any) -> Any:
    if not isinstance(one, dict):
        return one
    candidate = cast(Plain, one)
    execution = {key: value for key, value in candidate.items() if key not in {*_OF_CANDIDATE, "strategy"}}
    return {**{key: candidate[key] for key in _OF_CANDIDATE & candidate.keys()}, "execution": execution}


def _as_written(problem: Problem) -> Problem:
    message = problem.message.replace(".execution.", ".").replace("offers.options", "hardware_options")
    return replace(problem, message=message)


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _flaws_of_facts(plan: Plan) -> Iterator[str]:
    """What is wrong of the figures that are read of a plan's hardware and model."""
    counts = {"hardware.num_gpus": 1, "model.num_parameters": 0, "model.num_trainable_parameters": 0}
    for key, least in counts.items():
        section, _, name = key.partition(".")
        value = getattr(plan, section).get(name, least)
        if type(value) is not int or value < least:
            yield f"{key} is {quoted(value)}; expected a whole number of at least {least}"
    if not isinstance(name := plan.hardware.get("name"), str | None):
        yield f"hardware.name is {quoted(name)}; expected text"


def _flaws_of_choice(plan: Plan) -> Iterator[str]:
    if plan.chosen is None:
        return
    if plan.chosen >= len(plan.candidates):
        known = f"a place among the {len(plan.candidates)} candidates, from 0" if plan.candidates else "null"
        yield f"chosen is {plan.chosen}; expected {known}"
        return
    key, chosen = f"candidates.{plan.chosen}", plan.candidates[plan.chosen]
    if not chosen.fits:
        yield f"{key}.fits is false; expected that what is chosen fits: choose another candidate, or null"
    size, num_gpus = chosen.execution.layout.world_size, plan.hardware.get("num_gpus")
    if isinstance(num_gpus, int) and size > num_gpus:
        yield f"{key}.layout spreads over {size} GPUs; expected hardware.num_gpus, {num_gpus}, at most"
    yield from _flaws_of_batch(key, chosen, job=plan.job)


def _flaws_of_batch(key: str, chosen: Candidate, *, job: Plain) -> Iterator[str]:
    """The gradient accumulation must give the job's global batch."""
    size = _section(job, "train").get("global_batch_size")
    if not isinstance(size, int) or size < 1:
        return  # the reader of jobs says what is wrong with it
    execution = chosen.execution
    micro, ranks = execution.micro_batch_size, execution.layout.data_world_size
    expected = accumulation_steps(global_batch_size=size, micro_batch_size=micro, data_world_size=ranks)
    found = execution.gradient_accumulation_steps
    if found != expected:
        yield (
            f"{key}.gradient_accumulation_steps is {found}; expected {expected}: the job's global batch of {size} "
            f"over {ranks} data-parallel ranks in micro-batches of {micro}"
        )
