"""Turns pydantic's errors into sentences, each at its place in the job file."""

import difflib
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from shardwise.errors import Problem, quoted
from shardwise.spec.job.keys import Job
from shardwise.spec.job.places import Key, Places

#: What a sentence has between what was found, what is expected, and the nearest of it.
_EXPECTED, _NEAR = "; expected ", "; did you mean "
_MODEL_HINT = "; write a hub id or a folder, for example model: meta-llama/Llama-3.1-8B"
_MAX_NAMES = 8

#: A key, or a key and its value -> the end of the sentence that refuses it.
FROM_OTHER_TOOLS: dict[str, str] = tomllib.loads(
    (resources.files("shardwise.spec.job") / "other_tools.toml").read_text(encoding="utf-8")
)


def problems_in(
    data: dict[str, Any], error: ValidationError, *, root: type[Any], places: Places | None
) -> list[Problem]:
    """One problem per invalid key. `data`: what was validated; `root`: the model it was validated
    as; `places`: where each key was written, if anywhere."""
    problems: dict[str, Problem] = {}
    for detail in error.errors():
        path = _path_in_data(detail["loc"], data) or _path_in_sentence(detail, data)
        problem = Problem(where=places.where(*path) if places else None, message=_sentence(detail, path, root))
        problems.setdefault(str(problem), problem)
    return _in_one_sentence(list(problems.values()))


def _path_in_data(loc: Key, data: Any) -> Key:
    """Pydantic's location without the names of union branches."""
    path: list[str | int] = []
    at: Any = data
    for part in loc:
        if isinstance(at, dict):
            entries = cast(dict[Any, Any], at)
            if part in entries:
                at = entries[part]
                path.append(part)
                continue
            if str(part)[:1].isupper() or "[" in str(part) or part in ("int", "float", "str", "bool", "list"):
                continue
            path.append(part)
            at = None
        elif isinstance(at, list) and isinstance(part, int):
            items = cast(list[Any], at)
            path.append(part)
            at = items[part] if part < len(items) else None
    return tuple(path)


def _path_in_sentence(detail: Any, data: dict[str, Any]) -> Key:
    """The key that the sentence of a rule about several keys begins with."""
    context: dict[str, Any] = detail.get("ctx") or {}
    key = str(context.get("error", "")).partition(":")[0]
    return (key,) if key in data else ()


#: What a value should be, by pydantic's kind of error, where its words differ; braces: context.
_EXPECTATIONS = {
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dataclass_type": "keys below it",
    "dict_type": "keys below it",
    "string_too_short": "text that is not empty",
    "string_too_long": "text of {max_length} letters at most",
    "string_pattern_mismatch": "text without a null character",
    "string_unicode": "text that can be written as UTF-8",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} at most",
    "int_parsing_size": "a number nearer to zero",
}


def _sentence(detail: Any, path: Key, root: type[Any]) -> str:
    key = ".".join(str(part) for part in path) or "the job"
    found: Any = detail.get("input")
    context: dict[str, Any] = detail.get("ctx") or {}
    last = next((part for part in reversed(path) if isinstance(part, str)), "")
    if instead := FROM_OTHER_TOOLS.get(f"{last}: {found}".lower()):
        return f"{key} is {quoted(found)}; {instead}"
    match detail["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument" | "invalid_key":
            return f"unknown key {quoted(key)}{_nearest_key(root, path)}"
        case "missing":
            hint = _MODEL_HINT if key == "model" and root is Job else ""
            return f"the key {quoted(key)} is missing{hint}"
        case "value_error":
            sentence = str(context.get("error", detail["msg"]))
            return sentence if sentence.startswith(f"{key}:") else f"{key}: {sentence}"
        case "literal_error":
            choices = str(context["expected"]).replace("'", "")
            expected = f"{choices}{_nearest_value(found, choices)}"
        case "int_type" | "int_from_float" | "float_type" | "finite_number":
            bare = " without quotes" if isinstance(found, str) and _is_number(found) else ""
            expected = f"{'a whole number' if detail['type'].startswith('int') else 'a number'}{bare}"
        case "model_type" | "model_attributes_type":
            expected = f"keys below it ({', '.join(_keys_at(root, path)[:6])}, ...)"
        case kind:
            kind = "string_too_short" if found == "" else kind
            own = str(detail["msg"]).removeprefix("Input should be ")
            own = own.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
            expected = _EXPECTATIONS[kind].format_map(context) if kind in _EXPECTATIONS else own
    return f"{key} is {quoted(found)}; expected {expected}"


def _in_one_sentence(problems: list[Problem]) -> list[Problem]:
    """Joins what the branches of a union expect of one value."""
    joined: dict[tuple[str | None, str], Problem] = {}
    for problem in problems:
        found, expects, expected = problem.message.partition(_EXPECTED)
        before = joined.get((problem.where, found)) if expects else None
        if before is None:
            joined[problem.where, found] = problem
            continue
        wanted, near, name = before.message.partition(_NEAR)
        other, also_near, other_name = expected.partition(_NEAR)
        message = f"{wanted}, or {other}{near or also_near}{name or other_name}"
        joined[problem.where, found] = Problem(where=problem.where, message=message)
    return list(joined.values())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _keys_at(root: type[Any], path: Key) -> list[str]:
    """The valid keys of the mapping at a path; none where no mapping stands there."""
    keys = _keys_of(root)
    for name in (part for part in path if isinstance(part, str)):
        below = (_keys_of(kind) for kind in _types_in(keys.get(name)))
        keys = next((found for found in below if found), dict[str, Any]())
    return list(keys)


def _keys_of(kind: Any) -> dict[str, Any]:
    """The keys of a mapping and what each may hold; none of what is no mapping."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {field.name: hints[field.name] for field in fields(kind)}
    return {}


def _types_in(annotation: Any) -> Iterator[Any]:
    """A field's type, and those inside it: of a union or a list."""
    yield annotation
    for part in get_args(annotation):
        yield from _types_in(part)


def _nearest_key(root: type[Any], path: Key) -> str:
    name = str(path[-1])
    if name in FROM_OTHER_TOOLS:
        return f"; {FROM_OTHER_TOOLS[name]}"
    siblings = _keys_at(root, path[:-1])
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    for section in ("train", "data", "lora", "preference"):
        if name in _keys_at(root, (section,)):
            return f"; it belongs under {section}:"
    more = f", ... and {len(siblings) - _MAX_NAMES} more: docs/reference/{'job' if root is Job else 'plan'}.md"
    listed = ", ".join(siblings[:_MAX_NAMES]) + (more if len(siblings) > _MAX_NAMES else "")
    return f"; valid here: {listed}" if listed else ""


def _nearest_value(found: Any, expected: str) -> str:
    choices = expected.replace(" or ", ", ").split(", ")
    near = difflib.get_close_matches(str(found), choices, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
