"""The texts that messages say, each by its place; and what of them a rendering leaves out."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from shardwise.data.read.messages import CALL_KEYS, RowError
from shardwise.data.workers.template import Template

#: What a message may say beside content. Others (identifiers, names, times, ratings) tell about it.
REASONING = ("reasoning_content", "reasoning", "thinking")

Message = dict[str, Any]
Path = tuple[str | int, ...]
#: (number of the message, path inside it)
Place = tuple[int, Path]

#: A text that no row holds, and white space around it as a whole content, which templates trim.
MARK = re.compile(r"Qz(\d+)qZ")
BEFORE, BEHIND = " \t\n", "\n\t "


def mark(number: int) -> str:
    """The text that stands for the numbered one."""
    return f"Qz{number}qZ"


def said_in(messages: Sequence[Message]) -> Iterator[tuple[Place, str]]:
    """All that is said: contents, reasoning, names and arguments of calls; no blank texts."""
    for index, message in enumerate(messages):
        for key, value in message.items():
            if key == "content" or key in REASONING:
                found = _texts(value, (key,))
            elif key in CALL_KEYS:
                found = (
                    part
                    for path, call in _calls(value, (key,))
                    for name in ("name", "arguments")
                    for part in _texts(call.get(name), (*path, name))
                )
            else:
                continue
            yield from (((index, path), text) for path, text in found if text.strip())


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _texts(item, (*path, key))


def _calls(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The calls in what a message has under one of `CALL_KEYS`, by their paths."""
    if isinstance(value, list):
        for index, call in enumerate(value):
            yield from _calls(call, (*path, index))
    elif isinstance(value, dict) and isinstance(value.get("function"), dict):
        yield from _calls(value["function"], (*path, "function"))
    elif isinstance(value, dict):
        yield path, value


def put(value: Any, path: Path, text: Any) -> Any:
    """A copy of nested objects and lists with another value at a path."""
    if not path:
        return text
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = put(value[path[0]], path[1:], text)
    return copied


def replaced(messages: Sequence[Message], texts: Mapping[Place, str]) -> list[Message]:
    """The messages with other texts in some places."""
    found = list(messages)
    for (index, path), text in texts.items():
        found[index] = put(found[index], path, text)
    return found


def marked(messages: Sequence[Message]) -> tuple[list[Message], dict[Place, str]]:
    """The messages with a mark in place of each text, and the marks by their places, in order. Two
    keys of a message that hold the same reasoning share one."""
    marks: dict[Place, str] = {}
    shared: dict[tuple[int, str], str] = {}
    for place, text in said_in(messages):
        own = mark(len(marks))
        if is_whole(place):
            own = f"{BEFORE}{own}{BEHIND}"
        if place[1][0] in REASONING:
            own = shared.setdefault((place[0], text), own)
        marks[place] = own
    return replaced(messages, marks), marks


def is_whole(place: Place) -> bool:
    """Whether it is a content or reasoning, which templates trim, and no part of a call."""
    return len(place[1]) == 1


def shape_of(message: Message) -> tuple[Any, ...]:
    """What messages of one shape share: role, keys, and which texts are blank or empty."""
    same = [message.get(key) for key in REASONING]
    return message["role"], outline(message), same[0] == same[1], same[1] == same[2], same[0] == same[2]


def outline(value: Any) -> Any:
    """Keys, and what is text, blank or empty; not what the texts say."""
    if isinstance(value, str):
        return bool(value) + bool(value.strip())
    if isinstance(value, dict):
        return tuple((key, outline(item)) for key, item in value.items())
    return tuple(map(outline, value)) if isinstance(value, list) else type(value)


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with each call's arguments as JSON text, as some templates expect them."""
    found = list(messages)
    for index, path, call in calls_in(messages):
        held = call["arguments"]
        text = getattr(held, "as_text", None) or json.dumps(held, ensure_ascii=False)
        found[index] = put(found[index], (*path, "arguments"), text)
    return found


def calls_in(messages: Sequence[Message]) -> Iterator[tuple[int, Path, dict[str, Any]]]:
    """(number of the message, path, call) of calls whose arguments are objects."""
    for index, message in enumerate(messages):
        for key in CALL_KEYS:
            for path, call in _calls(message.get(key), (key,)):
                if isinstance(call.get("arguments"), dict):
                    yield index, path, call


LEFT_OUT = "the chat template leaves out the reasoning of earlier turns"

UNREAD = (
    "not read by the chat template and would be lost; remove it, or name a template that writes it in "
    "data.chat_template"
)

#: Where a template may cut a text in two: lines and tags.
_CUTS = re.compile(r"(</?[\w:|▁｜-]+>|\[/?[A-Z_]+\]|\n)")


def unwritten(messages: Sequence[Message], text: str) -> Iterator[Place]:
    """Places of texts that are not in a rendering, in the order of messages, as they are or as
    JSON. White space around them does not count, and a system prompt may be anywhere."""
    index, at, reached = 0, 0, 0
    for place, said in said_in(messages):
        if place[0] != index:
            index, at = place[0], reached
        anywhere = messages[index]["role"] in ("system", "developer")
        found = _find(text, said.strip(), start=0 if anywhere else at)
        if found is None:
            yield place
        elif not anywhere:
            reached = max(reached, found)


def _find(text: str, said: str, *, start: int) -> int | None:
    for spelt in (said, json.dumps(said, ensure_ascii=False)[1:-1], json.dumps(said)[1:-1]):
        at = text.find(spelt, start)
        if at >= 0:
            return at + len(spelt)
    return None


def lost_of(
    template: Template, messages: Sequence[Message], suspects: Collection[Place], *, tools: Any
) -> Iterator[tuple[Place, str]]:
    """(place, what is lost) of texts that are not in a rendering as they are: "" for all, or a
    piece between lines and tags. A mark behind each piece tells: templates may rewrite a text."""
    pieces: dict[Place, list[tuple[str, str]]] = {}
    texts: dict[Place, str] = {}
    numbers = count()
    for place, said in said_in(messages):
        if place in suspects:
            parts = _CUTS.split(said) if is_whole(place) and _CUTS.sub("", said).strip() else [said]
            pieces[place] = [(part.strip(), mark(next(numbers))) for part in parts[::2] if part.strip()]
            marks = iter(pieces[place])
            parts[::2] = [part.rstrip() + next(marks)[1] if part.strip() else part for part in parts[::2]]
            texts[place] = "".join(parts)
    try:
        rendered, _ = template.render(replaced(messages, texts), tools=tools)
    except RowError:  # it reads one of them, and refuses another text in its place
        for suspect in pieces if len(pieces) > 1 else ():
            yield from lost_of(template, messages, {suspect}, tools=tools)
        return
    for place, marks in pieces.items():
        lost = [piece for piece, own in marks if own not in rendered]
        if lost:
            yield place, "" if len(lost) == len(marks) else lost[0]


def complaint(messages: Sequence[Message], place: Place, piece: str, *, is_earlier: bool) -> str:
    """The sentence about a lost text or piece; `is_earlier`: an earlier turn's reasoning."""
    index, path = place
    what = f"{path[0]} of message {index + 1} ({messages[index]['role']})"
    if piece:
        what = f"{piece[:40]!r} in {what}"
    less = ", or train the last turn alone with train_on: completion" if is_earlier else ""
    return f"{what} is {UNREAD}{less}"
