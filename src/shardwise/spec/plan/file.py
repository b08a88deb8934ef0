"""Reads plan.json: a Plan that can be executed, or sentences that say what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from shardwise.errors import InputError, Problem, quoted
from shardwise.spec.job.errors import problems_in
from shardwise.spec.layout.execution import accumulation_steps
from shardwise.spec.plan.forecast import VERSION, Candidate, Plan
from shardwise.spec.plan.keys import PlanKeys


def read_plan(path: str | Path) -> Plan:
    """Reads plan.json. Raises InputError: the file is missing or is no JSON, or one problem for each key that is not
    what a plan has there."""
    try:
        data: Any = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise InputError(Problem(where=str(path), message=f"cannot be read: {error.strerror}")) from None
    except json.JSONDecodeError as error:
        message = f"is not JSON: {error.msg} in column {error.colno}; make it again by `shardwise plan --output`"
        raise InputError(Problem(where=f"{path}:{error.lineno}", message=message)) from None
    except (ValueError, RecursionError):
        message = "is not JSON that `shardwise plan --output` writes; make it again"
        raise InputError(Problem(where=str(path), message=message)) from None
    try:
        return plan_from_json(data)
    except InputError as error:
        problems = [Problem(where=str(path), message=problem.message) for problem in error.problems]
        raise InputError(problems, total=error.total) from None


def plan_from_json(data: Any) -> Plan:
    """Plain data as a Plan. Raises InputError: of another version, or one problem for each key that is wrong."""
    if not isinstance(data, dict):
        raise InputError(f"is {quoted(data)}; expected what `shardwise plan --output` writes")
    found = cast(dict[str, Any], data)
    version = found.get("version")
    if type(version) is bool or version != VERSION:
        said = "the key 'version' is missing" if "version" not in found else f"version is {quoted(version)}"
        raise InputError(f"{said}; expected {VERSION}, the one that this program reads: make the plan again with it")
    try:
        # As JSON, in which lists are tuples and objects are dataclasses.
        PlanKeys.model_validate_json(json.dumps(found))
    except ValidationError as error:
        raise InputError(problems_in(found, error, root=PlanKeys, places=None)) from None
    try:
        plan = Plan.from_json(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise InputError("its keys do not belong together; make it again by `shardwise plan --output`") from None
    problems = [Problem(message=flaw) for flaw in _flaws_of_choice(plan)]
    if problems:
        raise InputError(problems)
    return plan


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _flaws_of_choice(plan: Plan) -> Iterator[str]:
    """Why the chosen candidate cannot be executed."""
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
    if num_gpus is not None and size > num_gpus:
        yield f"{key}.layout spreads over {size} GPUs; expected hardware.num_gpus, {num_gpus}, at most"
    yield from _flaws_of_batch(key, chosen, job=plan.job)


def _flaws_of_batch(key: str, chosen: Candidate, *, job: dict[str, Any]) -> Iterator[str]:
    """The gradient accumulation must give the job's global batch."""
    train = job.get("train")
    size = cast(dict[str, Any], train).get("global_batch_size") if isinstance(train, dict) else None
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
