"""The messages of a chat, in the spellings of OpenAI and of ShareGPT, and how text is read from any column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


class RowError(Exception):
    """What is wrong with one row, as a sentence; the reader knows where the row stands."""


def text_of(row: Row, column: str, *, may_be_empty: bool = False, of: str = "") -> str:
    """The text in a column; `of` is what messages write before the column's name. Raises RowError: it holds something
    else, or nothing."""
    value = row.get(column)
    name = f"{of}{column}"
    if not isinstance(value, str):
        raise RowError(f"{name} is {shown(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowError(f"{name} is empty; expected text to train on")
    return value


def shown(value: Any) -> str:
    """A stranger's value in a message: short."""
    names = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}
    if type(value) in names:
        return names[type(value)]
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


ROLES = ("system", "developer", "user", "assistant", "tool")

SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
}


def messages_of(row: Row, column: str) -> list[dict[str, Any]]:
    """The messages in a column, each with `role`, `content` and whatever else it says. Raises RowError: they are none,
    or one has no known role or no text."""
    items = row.get(column)
    if not isinstance(items, list):
        raise RowError(f"{column} is {shown(items)}; expected a list of messages")
    if not items:
        raise RowError(f"{column} is empty; expected at least one message")
    return [_message(item, of=f"{column}[{index}]") for index, item in enumerate(items)]


def _message(item: Any, *, of: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RowError(f"{of} is {shown(item)}; expected an object with role and content")
    speaker, says, roles = _spelling(item, of=of)
    name = item[speaker]
    if not isinstance(name, str) or name not in roles:
        raise RowError(f"{of}.{speaker} is {shown(name)}; expected {', '.join(roles)}")
    role = roles[name]
    if item.get("weight") is not None:
        raise RowError(f"{of}.weight is not read; remove it, or move what is not trained into the prompt of a pair")
    extras = {key: value for key, value in item.items() if key not in (speaker, says) and value not in _NOTHING}
    if "tool_calls" in extras and not _are_calls(extras["tool_calls"]):
        expected = 'a list of calls, each {"function": {"name": ..., "arguments": {...}}}'
        raise RowError(f"{of}.tool_calls is {shown(extras['tool_calls'])}; expected {expected}")
    may_be_empty = role != "assistant" or "tool_calls" in extras
    return {"role": role, "content": _content(item, says, may_be_empty=may_be_empty, of=f"{of}."), **extras}


#: Values of a message's keys that say nothing, as columns of one type are filled up with.
_NOTHING = (None, "", [], {})


def _are_calls(calls: Any) -> bool:
    """Whether each is {"function": {"name": ...}} or, as templates also read it, {"name": ...}."""
    functions = (
        [call.get("function", call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    )
    named = [function for function in functions if isinstance(function, dict) and isinstance(function.get("name"), str)]
    return isinstance(calls, list) and len(named) == len(calls)


def _spelling(item: dict[str, Any], *, of: str) -> tuple[str, str, dict[str, str]]:
    """The keys for who speaks and what is said, and the names of speakers."""
    if "role" in item and ("content" in item or "tool_calls" in item):
        return "role", "content", {role: role for role in ROLES}
    if "from" in item and "value" in item:
        return "from", "value", SPEAKERS
    raise RowError(
        f"{of} has the keys {', '.join(map(str, item)) or '(none)'}; expected role and content, or from and value"
    )


def _content(item: dict[str, Any], key: str, *, may_be_empty: bool, of: str) -> str:
    value = item.get(key)
    if value is None and may_be_empty:
        return ""
    if not isinstance(value, list):
        return text_of(item, key, may_be_empty=may_be_empty, of=of)
    parts = [part if isinstance(part, dict) else {} for part in value]
    if not all(part.get("type") == "text" for part in parts):
        raise RowError(f"{of}{key} holds parts that are not text; expected text, or parts of type text only")
    texts = "".join(text_of(part, "text", may_be_empty=True, of=f"{of}{key}.") for part in parts)
    return text_of({key: texts}, key, may_be_empty=may_be_empty, of=of)


def tools_of(row: Row) -> list[dict[str, Any]] | None:
    """The functions a row offers: a list of objects, or one as JSON text, as columns of one type need it. Raises
    RowError: it holds something else."""
    tools = value = row.get("tools")
    if isinstance(value, str) and value.strip():
        try:
            tools = json.loads(value)
        except (ValueError, RecursionError):
            tools = value
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise RowError(f"tools is {shown(value)}; expected a list of objects that describe functions")
    return tools or None
