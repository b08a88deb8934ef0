"""The tools and calls of a chat: JSON text is read as what it holds, nulls that only fill up columns are left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


class RowError(Exception):
    """What is wrong with one row, as a sentence; the reader knows where the row stands."""


def shown(value: Any) -> str:
    """A stranger's value in a message: short."""
    names = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}
    if type(value) in names:
        return names[type(value)]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def parsed(value: Any) -> Any:
    """What the JSON text of an object or a list holds, as columns of one type need it; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


class Arguments(dict[str, Any]):
    """A call's arguments as an object; `as_text`: as JSON text, the row's own where it has one."""

    def __init__(self, value: Mapping[str, Any], *, text: str = "") -> None:
        super().__init__(value)
        self.as_text = text or json.dumps(value, ensure_ascii=False)


NO_ARGUMENTS = "a call without arguments is read as one with {}"
FILLED = "nulls in the objects of tools and tool_calls are left out, with which a column of one type is filled up"


def calls_of(value: Any, *, of: str, notes: list[str]) -> list[dict[str, Any]]:
    """The calls in a list, or in JSON text of one. Raises RowError: it holds something else."""
    calls = parsed(value)
    if not isinstance(calls, list):
        raise RowError(f"{of} is {shown(value)}; expected a list of calls, each {_CALL}")
    return [call_of(call, of=f"{of}[{index}]", notes=notes) for index, call in enumerate(calls)]


_CALL = '{"function": {"name": ..., "arguments": {...}}}'


def call_of(value: Any, *, of: str, notes: list[str]) -> dict[str, Any]:
    """A call as {"function": {"name": ...}} or, as templates also read it, {"name": ...}, with arguments that are an
    object. Raises RowError: it is none."""
    call = parsed(value)
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError(f"{of} is {shown(value)}; expected a call, {_CALL}")
    said = {**function, "arguments": _arguments(function.get("arguments"), of=of, notes=notes)}
    return said if function is call else {**call, "function": said}


def _arguments(value: Any, *, of: str, notes: list[str]) -> Arguments:
    if value in (None, "", []):  # the last is PHP's empty object, and an empty map of a column
        notes.append(NO_ARGUMENTS)
        return Arguments({})
    held = parsed(value)
    if not isinstance(held, dict):
        raise RowError(f"{of}: arguments is {shown(value)}; expected an object, or the JSON text of one")
    return Arguments(held, text=value if isinstance(value, str) else "")


def tools_of(row: Row) -> list[dict[str, Any]] | None:
    """The functions a row offers: a list of objects; it or each of them may be JSON text. Raises RowError: it holds
    something else."""
    value = row.get("tools")
    tools = parsed(value)
    if isinstance(tools, list):
        tools = [parsed(tool) for tool in tools]
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise RowError(f"tools is {shown(value)}; expected a list of objects that describe functions")
    return tools or None


#: Keys of a message that hold calls.
CALL_KEYS = ("tool_calls", "function_call")


def unfilled(row: Row) -> Row:
    """A row of a columnar file without the nulls that fill up the objects of its tools and calls, at any depth."""
    return {column: _bare(value) if column == "tools" else _bare_calls(value) for column, value in row.items()}


def _bare_calls(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [
        {key: _bare(part) if key in CALL_KEYS else part for key, part in message.items()}
        if isinstance(message, dict)
        else message
        for message in value
    ]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(part) for key, part in value.items() if part is not None}
    return [_bare(part) for part in value] if isinstance(value, list) else value
