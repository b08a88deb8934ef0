"""plan.json as others read it: its published schema, and how two plans are told apart."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from shardwise.units import MIB
from tests.unit.house.tree import ROOT

SCHEMA = ROOT / "docs/plan.schema.json"

#: As far a figure may move: seconds, bytes from `_BYTES` on, and what sentences say of them.
FIGURES, _BYTES = 0.01, MIB
_FIGURE = re.compile(r"\d+\.\d+")
SCREEN = 400


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


@cache
def closed_validator() -> Draft202012Validator:
    """Of the same schema without room for keys that it does not describe."""
    return Draft202012Validator(_closed(json.loads(SCHEMA.read_text(encoding="utf-8"))))


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    # `properties` itself is a table of names, and `train` and `lora` are the job file's own.
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def flaws(plan: Any) -> list[str]:
    """What of a plan the closed schema does not allow, each with its place."""
    return [f"{error.json_path}: {error.message[:200]}" for error in closed_validator().iter_errors(plan)]


def written(document: Any, indent: int = 0) -> str:
    """JSON for people who review it: what holds nothing nested stands on one line, if it fits."""
    line, inner, outer = json.dumps(document, allow_nan=False), " " * (indent + 1), " " * indent
    nested = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    if not nested or (len(line) < SCREEN and not any(isinstance(value, dict) for value in nested)):
        return line
    if isinstance(document, dict):
        rows = [f"{json.dumps(key)}: {written(value, indent + 1)}" for key, value in document.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{outer}}}"
    return "[\n" + ",\n".join(inner + written(value, indent + 1) for value in document) + f"\n{outer}]"


def differences(found: Any, expected: Any, at: str = "$") -> Iterator[str]:
    """Where choices differ, or figures by more than 1 %, each place with both values."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if key not in found or key not in expected:
                yield f"{at}.{key} is {'new' if key in found else 'gone'}"
            else:
                yield from differences(found[key], expected[key], f"{at}.{key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif not _same(found, expected):
        yield f"{at} is {found!r}, and was {expected!r}"


def _same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(found, str):
        figures = zip(_FIGURE.findall(found), _FIGURE.findall(expected), strict=False)
        return _FIGURE.sub("", found) == _FIGURE.sub("", expected) and all(_near(*map(float, two)) for two in figures)
    if isinstance(found, float) or (isinstance(found, int) and found > _BYTES):
        return _near(found, expected)
    return found == expected


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= FIGURES * max(abs(one), abs(other))
