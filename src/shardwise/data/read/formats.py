"""The row formats as one table: columns, and how a row becomes an example."""

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
    shown,
    text_of,
    tools_of,
    unfilled,
)
from shardwise.spec.job.data import RowFormat
from shardwise.spec.job.preference import Objective

#: What columns of answers are called, beside `data.columns`.
_ANSWERS = ("response", "output", "answer", "completion", "reply", "target", "solution")


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages for a chat template.

    Attributes:
        messages: each with `role` and `content`, and what else the template may read (`tool_calls`,
            `name` ...).
        learns: for each message, whether it may be trained; only ever true for the assistant's.
        excluded: the number of the first message that the row marks as not trained; 0 for none.
        notes: what was done with the row that its reader would not guess, each as a sentence
            without figures.
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


@dataclass(frozen=True, kw_only=True)
class Preference:
    """An answer that is preferred to another, each with the prompt before it."""

    chosen: Conversation | Pair
    rejected: Conversation | Pair


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """An answer with its prompt, and whether it is a good one."""

    answer: Conversation | Pair
    label: bool


Example = Conversation | Pair | Text
AnyExample = Example | Preference | Labelled


def answers_of(example: AnyExample) -> tuple[Example, ...]:
    """What of an example is a row of its own: chosen and rejected, or one."""
    if isinstance(example, Preference):
        return example.chosen, example.rejected
    return (example.answer if isinstance(example, Labelled) else example,)


@dataclass(frozen=True)
class Format:
    """A row format: the columns it reads, and how a row becomes an example (or a RowError)."""

    name: RowFormat
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Callable[[Row], AnyExample]

    @property
    def label(self) -> str:
        """For messages."""
        return "instruction/input/output" if self.name == "instruction" else "/".join(self.required)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns it reads."""
        return self.required + self.optional


def recognise(
    columns: Sequence[str],
    *,
    wanted: RowFormat = "auto",
    renames: Mapping[Any, str] | None = None,
    objective: Objective = "sft",
) -> Format:
    """The first format of the objective whose required columns are there, or the wanted one.
    `renames`: `data.columns`. Raises RowError: no format matches, or the wanted one does not."""
    names = renamed(dict.fromkeys(columns), renames or {})
    table = formats_of(objective)
    candidates = table if wanted == "auto" else tuple(form for form in table if form.name == wanted)
    if not candidates:
        known = " or ".join(form.name for form in table)
        raise RowError(
            f"is to be read as {wanted}, and objective {objective} reads {known}; change format or objective"
        )
    for form in candidates:
        if set(form.required) <= set(names):
            return form
    expected = "; or ".join(" and ".join(form.required) for form in candidates)
    asked = "" if wanted == "auto" else f" (format: {wanted})"
    found = f"has the columns {', '.join(columns)}; expected {expected}{asked}"
    if objective == "sft" and {"chosen", "rejected"} <= set(names):
        raise RowError(f"{found}. Rows of chosen and rejected are learnt from with objective: dpo, orpo or simpo")
    if absent := [theirs for theirs in (renames or {}).values() if theirs not in columns]:
        raise RowError(f"{found}. data.columns names {', '.join(absent)}, which it does not have")
    likely = [name for name in columns if name.lower() not in ("id", "index")] or list(columns)
    required = candidates[-1].required
    # Two columns are rather a question and its answer than plain text.
    if len(likely) > 1 and wanted == "auto":
        answer = next((name for name in likely if name.lower() in _ANSWERS), likely[1])
        likely, required = [next(name for name in likely if name != answer), answer], ("prompt", "completion")
        if {"instruction", "context"} <= set(columns):  # as Dolly's
            likely, required = ["context", answer], ("input", "output")
    example = "{" + ", ".join(f"{ours}: {theirs}" for ours, theirs in zip(required, likely, strict=False)) + "}"
    raise RowError(f"{found}. Say in data.columns what its columns are, as {example}")


def renamed(row: Row, columns: Mapping[Any, str]) -> Row:
    """A row under the names of `data.columns`, {name of a format's column: name in the file}."""
    there = {ours: theirs for ours, theirs in columns.items() if theirs in row}
    kept = {name: value for name, value in row.items() if name not in there and name not in there.values()}
    return kept | {ours: row[theirs] for ours, theirs in there.items()}


def read_row(form: Format, row: Row, *, columnar: bool = False) -> AnyExample:
    """A row as an example of its file's format; `columnar`: of a file of typed columns, which nulls
    fill up. Raises RowError: a column is missing, or holds something else."""
    for column in seen_columns(row):
        if row[column] not in (None, "", [], {}):
            raise RowError(f"has something in its column {column}; {TEXT_ALONE}")
    if any(column not in row for column in form.required):
        found = f"has the columns {', '.join(row)}"
        raise RowError(f"{found}; expected {' and '.join(form.required)}, as this file's other rows ({form.label})")
    bare = unfilled(row) if columnar else row
    example = form.read(bare)
    if isinstance(example, Conversation) and bare != row:
        return replace(example, notes=(*example.notes, FILLED))
    return example


def seen_columns(columns: Iterable[str]) -> list[str]:
    """Those columns that hold images, videos or sounds by their names."""
    return [column for column in columns if column.removesuffix("s") in SEEN]


def chat_of(prompt: str, answer: str, *, system: str = "") -> Conversation:
    """A question and its answer, which may be trained."""
    messages = [{"role": "system", "content": system}] if system.strip() else []
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return conversation(messages)


def conversation(messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> Conversation:
    """Messages of which every assistant's may be trained."""
    learns = tuple(message["role"] == "assistant" for message in messages)
    return Conversation(messages=messages, learns=learns, tools=tools)


def _conversation_of(messages: Sequence[ChatMessage], row: Row, *, of_prompt: int = 0) -> Conversation:
    """Of messages the first `of_prompt` are not trained. Raises RowError: another mark says so."""
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
    return lambda row: chat_of(text_of(row, question, may_be_empty=True), text_of(row, answer))


def _read_instruction(row: Row) -> Example:
    instruction, context = text_of(row, "instruction", may_be_empty=True), _optional_text(row, "input")
    prompt = f"{instruction}\n\n{context}" if context.strip() else instruction
    return chat_of(prompt, text_of(row, "output"), system=_optional_text(row, "system"))


def _read_pair(row: Row) -> Conversation | Pair:
    both = "prompt", "completion"
    if not any(isinstance(row[column], list) for column in both) and not all(_is_chat(row[column]) for column in both):
        if tools_of(row):
            raise RowError("tools has no meaning for a prompt of plain text; remove it, or write the pair as messages")
        return Pair(prompt=text_of(row, "prompt", may_be_empty=True), completion=text_of(row, "completion"))
    prompt, completion = _said(row, "prompt", role="user"), _said(row, "completion", role="assistant")
    return _conversation_of(prompt + completion, row, of_prompt=len(prompt))


def _is_chat(value: Any) -> bool:
    held = None if isinstance(value, str) and value.lstrip()[:1] != "[" else parsed(value)
    return isinstance(held, list) and all(isinstance(item, dict) and {"role", "from"} & item.keys() for item in held)


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


def _read_preference(row: Row) -> Preference:
    """Each side behind `prompt` or, without one, behind what both sides begin with."""
    sides = ("chosen", "rejected")
    lists = any(isinstance(row.get(column), list) for column in ("prompt", *sides))
    if lists or all(_is_chat(row[side]) for side in sides):
        before = [] if row.get("prompt") in (None, "") else _said(row, "prompt", role="user")
        answers = [_said(row, side, role="assistant") for side in sides]
        if not before or not isinstance(parsed(row["prompt"]), list):
            alike = shared(*([message.said for message in answer] for answer in answers))
            said = before[0].said["content"].strip() if before else ""
            if alike and not any(said in str(message.said.get("content")) for message in answers[0][:alike]):
                raise RowError(
                    "prompt is in no message that chosen and rejected begin with; write it there, or remove it"
                )
            before = answers[0][:alike] or before
            answers = [answer[alike:] for answer in answers]
        chosen, rejected = (_answered(before, answer, row, side) for answer, side in zip(answers, sides, strict=True))
        return Preference(chosen=chosen, rejected=rejected)
    if tools_of(row):
        raise RowError("tools has no meaning for a prompt of plain text; remove it, or write the rows as messages")
    texts = [text_of(row, side) for side in sides]
    if row.get("prompt") is not None:
        prompt = text_of(row, "prompt", may_be_empty=True)
    else:
        prompt = texts[0][: shared(*texts)]
        prompt = prompt[:-1] if prompt.endswith(" ") else prompt  # a word begins with the blank before it
        texts = [text[len(prompt) :] for text in texts]
        if not all(text.strip() for text in texts):
            raise RowError("chosen and rejected begin alike, and one of them has nothing more; write the prompt apart")
    chosen, rejected = (Pair(prompt=prompt, completion=text) for text in texts)
    return Preference(chosen=chosen, rejected=rejected)


def _said(row: Row, column: str, *, role: str) -> list[ChatMessage]:
    if _is_chat(row[column]) or not isinstance(row[column], str):
        return messages_of(row, column)
    return [ChatMessage(said={"role": role, "content": text_of(row, column)}, of=column)]


def shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many parts two sequences have in common before they differ."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def _answered(before: list[ChatMessage], answer: list[ChatMessage], row: Row, column: str) -> Conversation:
    """A prompt and its answer. Raises RowError: there is none, or not by the assistant."""
    if not answer:
        raise RowError(
            f"{column} has no message behind the prompt that both sides share; write one, or the prompt apart"
        )
    if (who := answer[0].said["role"]) != "assistant":
        raise RowError(f"{answer[0].of} ({who}) begins what is behind the prompt; expected a message of the assistant")
    return _conversation_of([*before, *answer], row, of_prompt=len(before))


def _read_labelled(row: Row) -> Labelled:
    label = {"true": 1, "1": 1, "false": 0, "0": 0}.get(str(row["label"]).strip().lower(), row["label"])
    if label not in (0, 1):
        raise RowError(f"label is {shown(label)}; expected true for a good answer, or false")
    return Labelled(answer=_read_pair(row), label=bool(label))


#: What objectives of pairs read, and what `kto` reads.
PREFERENCES = (Format("preference", ("chosen", "rejected"), ("prompt", "tools"), _read_preference),)
LABELLED = (Format("unpaired_preference", ("prompt", "completion", "label"), ("tools",), _read_labelled),)

BY_NAME = {form.name: form for form in (*FORMATS, *PREFERENCES, *LABELLED)}


def formats_of(objective: Objective) -> tuple[Format, ...]:
    """The row formats that an objective reads."""
    return FORMATS if objective == "sft" else LABELLED if objective == "kto" else PREFERENCES
