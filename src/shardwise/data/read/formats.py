"""The row formats as one table: the columns they are recognised by, and how a row becomes an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.data.read.messages import (
    FILLED,
    SEEN,
    TEXT_ALONE,
    ChatMessage,
    Row,
    RowError,
    messages_of,
    parsed,
    text_of,
    tools_of,
    unfilled,
)
from shardwise.spec.job.data import RowFormat


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages for a chat template.

    Attributes:
        messages: each with `role` and `content`, and what else the template may read (`tool_calls`, `name` ...).
        learns: for each message, whether it may be trained; only ever true for the assistant's.
        excluded: the number of the first message that the row marks as not trained; 0 for none.
        notes: what was done with the row that its reader would not guess, each as a sentence without figures.
    """

    messages: list[dict[str, Any]]
    learns: tuple[bool, ...]
    tools: list[dict[str, Any]] | None = None
    excluded: int = 0
    notes: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class Format:
    """A row format: the columns it reads, and how a row becomes an example (or a RowError)."""

    name: RowFormat
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Row], Example]

    @property
    def label(self) -> str:
        """For messages."""
        return "instruction/input/output" if self.name == "instruction" else "/".join(self.required)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns it reads."""
        return self.required + self.optional


def recognise(
    columns: Sequence[str], *, wanted: RowFormat = "auto", renames: Mapping[Any, str] | None = None
) -> Format:
    """The first format of the table whose required columns are there, or the wanted one. Raises RowError: no format
    matches, or the wanted one does not.

    Args:
        columns: as the file has them.
        renames: `data.columns`.
    """
    names = renamed(dict.fromkeys(columns), renames or {})
    candidates = FORMATS if wanted == "auto" else tuple(form for form in FORMATS if form.name == wanted)
    for form in candidates:
        if set(form.required) <= set(names):
            return form
    expected = "; or ".join(" and ".join(form.required) for form in candidates)
    asked = "" if wanted == "auto" else f" (format: {wanted})"
    found = f"has the columns {', '.join(columns)}; expected {expected}{asked}"
    if absent := [theirs for theirs in (renames or {}).values() if theirs not in columns]:
        raise RowError(f"{found}. data.columns names {', '.join(absent)}, which it does not have")
    likely = [name for name in columns if name.lower() not in ("id", "index")] or list(columns)
    # Two columns are rather a question and its answer than plain text.
    required = candidates[-1].required if len(likely) == 1 or wanted != "auto" else ("prompt", "completion")
    example = "{" + ", ".join(f"{ours}: {theirs}" for ours, theirs in zip(required, likely, strict=False)) + "}"
    raise RowError(f"{found}. Say in data.columns what its columns are, as {example}")


def renamed(row: Row, columns: Mapping[Any, str]) -> Row:
    """A row under the names of `data.columns`, {name of a format's column: name in the file}."""
    there = {ours: theirs for ours, theirs in columns.items() if theirs in row}
    kept = {name: value for name, value in row.items() if name not in there and name not in there.values()}
    return kept | {ours: row[theirs] for ours, theirs in there.items()}


def read_row(form: Format, row: Row, *, columnar: bool = False) -> Example:
    """A row as an example of its file's format; `columnar`: of a file of typed columns, which nulls fill up. Raises
    RowError: a column is missing, or holds something else."""
    seen = next((column for column in seen_columns(row) if row[column] not in (None, "", [], {})), None)
    if seen is not None:
        raise RowError(f"has something in its column {seen}; {TEXT_ALONE}")
    missing = [column for column in form.required if column not in row]
    if missing:
        found = f"has the columns {', '.join(row)}"
        raise RowError(f"{found}; expected {' and '.join(form.required)}, as this file's other rows ({form.label})")
    bare = unfilled(row) if columnar else row
    example = form.read(bare)
    if isinstance(example, Conversation) and bare != row:
        return replace(example, notes=(*example.notes, FILLED))
    return example


def seen_columns(columns: Iterable[str]) -> list[str]:
    """Those columns, of all that a row or a file has, that hold images, videos or sounds by their names."""
    return [column for column in columns if column.removesuffix("s") in SEEN]


def _chat(prompt: str, answer: str, *, system: str = "") -> Conversation:
    messages = [{"role": "system", "content": system}] if system.strip() else []
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return conversation(messages)


def conversation(messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> Conversation:
    """Messages of which every assistant's may be trained."""
    learns = tuple(message["role"] == "assistant" for message in messages)
    return Conversation(messages=messages, learns=learns, tools=tools)


def _conversation_of(messages: Sequence[ChatMessage], row: Row, *, of_prompt: int = 0) -> Conversation:
    """A row's messages, of which the first `of_prompt` are not trained. Raises RowError: another is marked as trained
    than may be."""
    learns = [message.said["role"] == "assistant" and at >= of_prompt for at, message in enumerate(messages)]
    excluded = 0
    for at, message in enumerate(messages):
        if message.mark and not learns[at]:
            expected = "only what the assistant says is trained, and nothing of a prompt"
            raise RowError(f"{message.of} ({message.said['role']}) is marked as trained; {expected}: remove the mark")
        if message.mark is False:
            learns[at], excluded = False, excluded or at + 1
    return Conversation(
        messages=[message.said for message in messages],
        learns=tuple(learns),
        tools=tools_of(row),
        excluded=excluded,
        notes=tuple(note for message in messages for note in message.notes),
    )


def _optional_text(row: Row, column: str) -> str:
    return "" if row.get(column) is None else text_of(row, column, may_be_empty=True)


def _question_of(question: str, answer: str) -> Callable[[Row], Example]:
    return lambda row: _chat(text_of(row, question, may_be_empty=True), text_of(row, answer))


def _read_instruction(row: Row) -> Example:
    instruction, context = text_of(row, "instruction", may_be_empty=True), _optional_text(row, "input")
    prompt = f"{instruction}\n\n{context}" if context.strip() else instruction
    return _chat(prompt, text_of(row, "output"), system=_optional_text(row, "system"))


def _read_pair(row: Row) -> Example:
    if not isinstance(row["prompt"], list) and not all(_is_chat(row[column]) for column in ("prompt", "completion")):
        if tools_of(row):
            raise RowError("tools has no meaning for a prompt of plain text; remove it, or write the pair as messages")
        return Pair(prompt=text_of(row, "prompt", may_be_empty=True), completion=text_of(row, "completion"))
    prompt, completion = messages_of(row, "prompt"), messages_of(row, "completion")
    return _conversation_of(prompt + completion, row, of_prompt=len(prompt))


def _is_chat(value: Any) -> bool:
    """Whether a column holds the JSON text of messages."""
    held = parsed(value)
    return isinstance(held, list) and all(
        isinstance(item, dict) and ("role" in item or "from" in item) for item in held
    )


def _read_conversations(row: Row) -> Example:
    messages, system = messages_of(row, "conversations"), _optional_text(row, "system")
    if system.strip():
        messages.insert(0, ChatMessage(said={"role": "system", "content": system}, of="system"))
    return _conversation_of(messages, row)


#: In the order of precedence: a row with `messages` and `text` is a chat.
FORMATS: tuple[Format, ...] = (
    Format("messages", ("messages",), ("tools",), lambda row: _conversation_of(messages_of(row, "messages"), row)),
    Format("conversations", ("conversations",), ("system", "tools"), _read_conversations),
    Format("instruction", ("instruction", "output"), ("input", "system"), _read_instruction),
    Format("prompt_completion", ("prompt", "completion"), ("tools",), _read_pair),
    Format("question_answer", ("question", "answer"), (), _question_of("question", "answer")),
    Format("query_response", ("query", "response"), (), _question_of("query", "response")),
    Format("text", ("text",), (), lambda row: Text(text=text_of(row, "text"))),
)

BY_NAME = {form.name: form for form in FORMATS}
