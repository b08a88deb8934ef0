"""What a row says and its rendering does not: nothing of it is lost in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any

from shardwise.data.read.messages import RowError
from shardwise.data.workers.said import Message, Place, is_whole, mark, replaced, said_in
from shardwise.data.workers.template import Template

LEFT_OUT = "the chat template leaves out the reasoning of earlier turns"

UNREAD = (
    "not read by the chat template and would be lost; remove it, or name a template that writes it in "
    "data.chat_template"
)

#: Where a template may cut a text in two: lines and tags.
_CUTS = re.compile(r"(</?[\w:|▁｜-]+>|\[/?[A-Z_]+\]|\n)")


def unwritten(messages: Sequence[Message], text: str) -> Iterator[Place]:
    """Places of texts that do not stand in a rendering, in the order of the messages, as they are or as JSON writes
    them. White space around them does not count, and a system prompt may stand anywhere."""
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
    """Where a text ends in a rendering."""
    for spelt in (said, json.dumps(said, ensure_ascii=False)[1:-1], json.dumps(said)[1:-1]):
        at = text.find(spelt, start)
        if at >= 0:
            return at + len(spelt)
    return None


def lost_of(
    template: Template, messages: Sequence[Message], suspects: Collection[Place], *, tools: Any
) -> Iterator[tuple[Place, str]]:
    """(place, what is lost of it) of texts that are not in a rendering as they are: "" for all of it, or a piece
    between lines and tags. A mark behind each piece tells, for a template may write a text in another way."""
    pieces: dict[Place, list[tuple[str, str]]] = {}
    texts: dict[Place, str] = {}
    numbers = count()
    for place, said in said_in(messages):
        if place in suspects:
            parts = _CUTS.split(said) if is_whole(place) else [said]
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
    """The sentence about a text that is lost, or a piece of it; `is_earlier`: it is an earlier turn's reasoning."""
    index, path = place
    what = f"{path[0]} of message {index + 1} ({messages[index]['role']})"
    if piece:
        what = f"{piece[:40]!r} in {what}"
    less = ", or train the last turn alone with train_on: completion" if is_earlier else ""
    return f"{what} is {UNREAD}{less}"
