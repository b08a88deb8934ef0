"""The row formats as one table: which columns they are recognised by, and how a row of each becomes an example.

An example is one of three things: a conversation, a pair of prompt and completion, or plain text. Columns that a format
does not name are ignored, and the user is told which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.spec.job_data import RowFormat

Row = Mapping[str, Any]


class RowError(Exception):
    """What is wrong with one row, as a sentence; the reader knows where the row stands."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages for a chat template.

    Attributes:
        messages: each with `role` and `content`, and what else the template may read (`tool_calls`, `name` ...).
        learns: for each message, whether it may be trained; only ever true for the assistant's.
        tools: functions the assistant may call, for templates that list them.
    """

    messages: list[dict[str, Any]]
    learns: tuple[bool, ...]
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt, and the completion that is trained."""

    prompt: str
    completion: str


@dataclass(frozen=True, kw_only=True)
class Text:
    """Plain text, trained as a whole."""

    text: str


Example = Conversation | Pair | Text


@dataclass(frozen=True, kw_only=True)
class Format:
    """A row format.

    Attributes:
        label: its name in announcements.
        required, optional: the columns it reads.
        read: row -> example; raises RowError.
    """

    name: RowFormat
    label: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    read: Callable[[Row], Example]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns it reads."""
        return self.required + self.optional


def recognise(columns: Sequence[str], *, wanted: RowFormat = "auto") -> Format:
    """The first format of the table whose required columns are there, or the wanted one.

    Raises:
        RowError: no format matches, or the wanted one does not.
    """
    candidates = FORMATS if wanted == "auto" else tuple(form for form in FORMATS if form.name == wanted)
    for form in candidates:
        if set(form.required) <= set(columns):
            return form
    expected = "; or ".join(_and(form.required) for form in candidates)
    asked = "" if wanted == "auto" else f" (format: {wanted})"
    raise RowError(f"has the columns {', '.join(columns)}; expected {expected}{asked}. Rename the columns")


def read_row(form: Format, row: Row) -> Example:
    """A row as an example of its file's format.

    Raises:
        RowError: a column is missing, or holds something else than the format says.
    """
    missing = [column for column in form.required if column not in row]
    if missing:
        found = f"has the columns {', '.join(row)}"
        raise RowError(f"{found}; expected {_and(form.required)}, as this file's other rows ({form.label})")
    return form.read(row)


def _and(columns: Sequence[str]) -> str:
    return " and ".join(columns)


def _text(row: Row, column: str, *, may_be_empty: bool = False, of: str = "") -> str:
    value = row.get(column)
    name = f"{of}{column}"
    if not isinstance(value, str):
        raise RowError(f"{name} is {_shown(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowError(f"{name} is empty; expected text to train on")
    return value


def _shown(value: Any) -> str:
    names = {dict: "an object", list: "a list", type(None): "null", bool: "true or false"}
    if type(value) in names:
        return names[type(value)]
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _chat(prompt: str, answer: str, *, system: str = "") -> Conversation:
    messages = [{"role": "system", "content": system}] if system.strip() else []
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return conversation(messages)


def conversation(messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> Conversation:
    """Messages of which every assistant's may be trained."""
    learns = tuple(message["role"] == "assistant" for message in messages)
    return Conversation(messages=messages, learns=learns, tools=tools)


def _optional_text(row: Row, column: str) -> str:
    return "" if row.get(column) is None else _text(row, column, may_be_empty=True)


def _question_of(question: str, answer: str) -> Callable[[Row], Example]:
    def read(row: Row) -> Example:
        return _chat(_text(row, question, may_be_empty=True), _text(row, answer))

    return read


def _read_instruction(row: Row) -> Example:
    instruction, context = _text(row, "instruction", may_be_empty=True), _optional_text(row, "input")
    prompt = f"{instruction}\n\n{context}" if context.strip() else instruction
    return _chat(prompt, _text(row, "output"), system=_optional_text(row, "system"))


def _read_pair(row: Row) -> Example:
    if not isinstance(row["prompt"], list):
        return Pair(prompt=_text(row, "prompt", may_be_empty=True), completion=_text(row, "completion"))
    prompt, completion = _messages(row, "prompt"), _messages(row, "completion")
    learns = tuple(message["role"] == "assistant" for message in completion)
    return Conversation(messages=prompt + completion, learns=(False,) * len(prompt) + learns)


def _read_plain(row: Row) -> Example:
    return Text(text=_text(row, "text"))


def _read_messages(row: Row) -> Example:
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise RowError(f"tools is {_shown(tools)}; expected a list of objects that describe functions")
    return conversation(_messages(row, "messages"), tools=tools or None)


def _read_conversations(row: Row) -> Example:
    messages, system = _messages(row, "conversations"), _optional_text(row, "system")
    if system.strip():
        messages.insert(0, {"role": "system", "content": system})
    return conversation(messages)


ROLES = ("system", "developer", "user", "assistant", "tool")

#: ShareGPT's names for who speaks.
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

_EXTRAS = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")


def _messages(row: Row, column: str) -> list[dict[str, Any]]:
    items = row.get(column)
    if not isinstance(items, list):
        raise RowError(f"{column} is {_shown(items)}; expected a list of messages")
    if not items:
        raise RowError(f"{column} is empty; expected at least one message")
    return [_message(item, of=f"{column}[{index}]") for index, item in enumerate(items)]


def _message(item: Any, *, of: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RowError(f"{of} is {_shown(item)}; expected an object with role and content")
    speaker, says, roles = _spelling(item, of=of)
    name = item[speaker]
    if not isinstance(name, str) or name not in roles:
        raise RowError(f"{of}.{speaker} is {_shown(name)}; expected {', '.join(roles)}")
    role = roles[name]
    if item.get("weight") is not None:
        raise RowError(f"{of}.weight is not read; remove it, or move what is not trained into the prompt of a pair")
    extras = {key: item[key] for key in _EXTRAS if item.get(key) is not None}
    may_be_empty = role != "assistant" or "tool_calls" in extras
    return {"role": role, "content": _content(item, says, may_be_empty=may_be_empty, of=f"{of}."), **extras}


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
        return _text(item, key, may_be_empty=may_be_empty, of=of)
    parts = [part if isinstance(part, dict) else {} for part in value]
    if not all(part.get("type") == "text" for part in parts):
        raise RowError(f"{of}{key} holds parts that are not text; expected text, or parts of type text only")
    texts = "".join(_text(part, "text", may_be_empty=True, of=f"{of}{key}.") for part in parts)
    return _text({key: texts}, key, may_be_empty=may_be_empty, of=of)


#: In the order of precedence: a row with `messages` and `text` is a chat.
FORMATS: tuple[Format, ...] = (
    Format(name="messages", label="messages", required=("messages",), optional=("tools",), read=_read_messages),
    Format(
        name="conversations",
        label="conversations",
        required=("conversations",),
        optional=("system",),
        read=_read_conversations,
    ),
    Format(
        name="instruction",
        label="instruction/input/output",
        required=("instruction", "output"),
        optional=("input", "system"),
        read=_read_instruction,
    ),
    Format(name="prompt_completion", label="prompt/completion", required=("prompt", "completion"), read=_read_pair),
    Format(
        name="question_answer",
        label="question/answer",
        required=("question", "answer"),
        read=_question_of("question", "answer"),
    ),
    Format(
        name="query_response",
        label="query/response",
        required=("query", "response"),
        read=_question_of("query", "response"),
    ),
    Format(name="text", label="text", required=("text",), read=_read_plain),
)

BY_NAME = {form.name: form for form in FORMATS}
