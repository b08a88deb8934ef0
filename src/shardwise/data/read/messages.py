"""The messages, tools and calls of a chat, in the spellings of OpenAI and ShareGPT."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

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


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values. Raises RowError: a key stands twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise RowError(f"the key {twice!r} stands twice in one object; remove one")
    return entries


DECODER = json.JSONDecoder(object_pairs_hook=unique)


def parsed(value: Any) -> Any:
    """What the JSON text of an object or a list holds, as columns of one type need it; anything
    else as it is. Raises RowError: a key stands twice in it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return DECODER.decode(value)
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
    """A call as {"function": {"name": ...}} or, as templates also read it, {"name": ...}, with
    arguments that are an object. Raises RowError: it is none."""
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
    """The functions a row offers, as objects or JSON text of them. Raises RowError: others."""
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
    """A columnar file's row without the nulls that fill up its tools and calls, at any depth."""
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


def text_of(row: Row, column: str, *, may_be_empty: bool = False, of: str = "") -> str:
    """The text in a column; `of`: what messages write before its name. Raises RowError."""
    value = row.get(column)
    name = f"{of}{column}"
    if not isinstance(value, str):
        raise RowError(f"{name} is {shown(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowError(f"{name} is empty; expected text to train on")
    return value


ROLES = ("system", "developer", "user", "assistant", "tool")

#: Who speaks, in any case -> the role; a call is the assistant's.
SPEAKERS = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model", "bot", "ai"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}

#: Keys that say whether a turn is trained: OpenAI's, Axolotl's, and others'.
MARKS = ("weight", "train", "training", "loss_mask", "loss")
_PARTS = ("train_detail", "training_detail")


class ChatMessage(NamedTuple):
    """A message for a chat template. `of`: where it stands; `mark`: whether the row says that it is
    trained, or is not; `notes`: what was done that a reader of the row would not guess."""

    said: dict[str, Any]
    of: str
    mark: bool | None = None
    notes: tuple[str, ...] = ()


def messages_of(row: Row, column: str) -> list[ChatMessage]:
    """The messages in a column, or JSON text of them. Raises RowError: they are none."""
    items = parsed(row.get(column))
    if not isinstance(items, list):
        raise RowError(f"{column} is {shown(items)}; expected a list of messages")
    if not items:
        raise RowError(f"{column} is empty; expected at least one message")
    return [_message(parsed(item), of=f"{column}[{index}]") for index, item in enumerate(items)]


def _message(item: Any, *, of: str) -> ChatMessage:
    if not isinstance(item, dict):
        raise RowError(f"{of} is {shown(item)}; expected an object with role and content")
    speaker, says = _spelling(item, of=of)
    name = item[speaker]
    role = SPEAKERS.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise RowError(f"{of}.{speaker} is {shown(name)}; expected {', '.join(SPEAKERS)}")
    extras = {key: value for key, value in item.items() if key not in (speaker, says) and value not in _NOTHING}
    mark = _take_mark(extras, of=of) if extras else None
    notes: list[str] = []
    if role == "call":
        role, item, extras = "assistant", {}, {**extras, "tool_calls": _spoken_calls(item, says, of=of)}
    calls = [key for key in CALL_KEYS if key in extras] if extras else []
    for key in calls:
        read = calls_of if key == "tool_calls" else call_of
        extras[key] = read(extras[key], of=f"{of}.{key}", notes=notes)
    content = _content(item, says, may_be_empty=role != "assistant" or bool(calls), of=f"{of}.")
    return ChatMessage(said={"role": role, "content": content, **extras}, of=of, mark=mark, notes=tuple(notes))


#: Names of what is no text, or how they begin: parts of a message, or columns of their own.
SEEN = ("image", "video", "audio")
TEXT_ALONE = "models are trained on text alone by this version, also those that read more; leave such rows out"

#: Values of a message's keys that say nothing, as columns of one type are filled up with.
_NOTHING = (None, "", [], {})


def _spelling(item: dict[str, Any], *, of: str) -> tuple[str, str]:
    if "role" in item and ("content" in item or any(key in item for key in CALL_KEYS)):
        return "role", "content"
    if "from" in item and "value" in item:
        return "from", "value"
    raise RowError(
        f"{of} has the keys {', '.join(map(str, item)) or '(none)'}; expected role and content, or from and value"
    )


def _spoken_calls(item: dict[str, Any], says: str, *, of: str) -> list[Any]:
    """The calls that a message of the speaker `function_call` writes as JSON in place of text."""
    held = parsed(item.get(says))
    if not held or not isinstance(held, dict | list):
        expected = 'a call as JSON, {"name": ..., "arguments": {...}}, or a list of them'
        raise RowError(f"{of}.{says} is {shown(held)}; expected {expected}")
    calls = held if isinstance(held, list) else [held]
    whole = [isinstance(call, dict) and "function" in call for call in calls]
    pairs = zip(calls, whole, strict=True)
    return [call if is_whole else {"type": "function", "function": call} for call, is_whole in pairs]


def _take_mark(extras: dict[str, Any], *, of: str) -> bool | None:
    """Takes out the keys that say whether a message is trained. Raises RowError."""
    if parts := [key for key in _PARTS if key in extras]:
        raise RowError(f"{of}.{parts[0]} is not read: a turn is trained as a whole or not at all; remove it")
    marks = {key: extras.pop(key) for key in MARKS if key in extras}
    for key, value in marks.items():
        if value not in (0, 1):
            raise RowError(f"{of}.{key} is {shown(value)}; expected 1 or true (trained), or 0 or false (not trained)")
    if len(set(marks.values())) > 1:
        raise RowError(f"{of}: {' and '.join(marks)} say different things about whether it is trained; keep one")
    return bool(next(iter(marks.values()))) if marks else None


def _content(item: dict[str, Any], key: str, *, may_be_empty: bool, of: str) -> str:
    value = item.get(key)
    if value is None and may_be_empty:
        return ""
    if not isinstance(value, list):
        return text_of(item, key, may_be_empty=may_be_empty, of=of)
    parts = [part if isinstance(part, dict) else {} for part in value]
    shown_things = [kind for part in parts if isinstance(kind := part.get("type"), str) and kind.startswith(SEEN)]
    if shown_things:
        raise RowError(f"{of}{key} holds a part of type {shown_things[0]}; {TEXT_ALONE}")
    if not all(part.get("type") == "text" for part in parts):
        raise RowError(f"{of}{key} holds parts that are not text; expected text, or parts of type text only")
    texts = "".join(text_of(part, "text", may_be_empty=True, of=f"{of}{key}.") for part in parts)
    return text_of({key: texts}, key, may_be_empty=may_be_empty, of=of)
