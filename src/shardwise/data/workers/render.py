"""Turns examples into text, with the spans of characters that are trained.

The template is `data.chat_template`, else the tokenizer's own, else `DEFAULT_TEMPLATE`. A pair of prompt and completion
becomes a chat where one of the first two exists, else prompt + completion + EOS. Plain text is text + EOS.

| train_on     | conversation                  | pair                    | text          |
|--------------|-------------------------------|-------------------------|---------------|
| `auto`       | every assistant message       | the completion          | everything    |
| `assistant`  | every assistant message       | the completion          | refused       |
| `completion` | the last assistant message    | the completion          | refused       |
| `all`        | everything                    | everything              | everything    |

An assistant's span includes its end-of-turn token. Spans come from `{% generation %}` blocks, else from rendering the
conversation up to each assistant message and with it; a template that rewrites earlier turns is refused. The text is
tokenised once, so no token is split by a span. Templates are rendered in a sandbox, in a worker process with limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.data.read.formats import Conversation, Example, Pair, Text, conversation
from shardwise.data.read.messages import RowError
from shardwise.errors import said
from shardwise.spec.job.data import TrainOn

#: For tokenizers without a chat template. Turns end with the tokenizer's own EOS, so that no token need be added to the
#: vocabulary and generation stops where the model was trained to stop.
DEFAULT_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: Characters of one rendered row; a template can make much of little.
MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One example as text.

    Attributes:
        spans: character ranges that are trained; None is all of the text.
        special_tokens: whether the tokenizer adds its own around the text (a template has written them already).
        notes: what was done with the row that its reader would not guess, each as a sentence without figures.
    """

    text: str
    spans: tuple[Span, ...] | None
    special_tokens: bool
    ends: bool
    notes: tuple[str, ...] = ()


class TemplateMemoryError(Exception):
    """Rendering met the worker's memory limit: the whole data set stops, not one row."""


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Renders examples for one tokenizer.

    Attributes:
        special_tokens: names of special tokens -> their text, which templates read (`bos_token`, `eos_token` ...).
        end_marks: texts of all special tokens; one of them ends a turn.
    """

    template: str | None
    special_tokens: Mapping[str, Any]
    end_marks: tuple[str, ...]
    train_on: TrainOn

    def render(self, example: Example) -> Rendered:
        """The text and what of it is trained. Raises RowError: the example cannot be rendered, or not with these masks;
        TemplateMemoryError: the template wants more memory than a worker may take."""
        match example:
            case Text():
                if self.train_on in ("assistant", "completion"):
                    what = f"train_on: {self.train_on} has no meaning for plain text"
                    raise RowError(f"{what}; use train_on: auto or all")
                return Rendered(text=_checked(example.text), spans=None, special_tokens=True, ends=True)
            case Pair(prompt=prompt, completion=completion) if self.template is not None:
                chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
                return self._chat(conversation(chat))
            case Pair(prompt=prompt, completion=completion):
                text = prompt + completion
                spans = None if self.train_on == "all" else ((len(prompt), len(text)),)
                return Rendered(text=_checked(text), spans=spans, special_tokens=True, ends=True)
            case Conversation():
                return self._chat(example)

    @property
    def marks_answers(self) -> bool:
        """Whether the template says itself what the assistant's part is."""
        return _GENERATION.search(self.template or "") is not None

    def syntax_fault(self) -> str | None:
        """What keeps the template from being compiled, or None."""
        from jinja2 import TemplateSyntaxError
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        try:
            render(conversations=[[]], chat_template=self.template, **self.special_tokens)
        except MemoryError:
            raise TemplateMemoryError from None
        except TemplateSyntaxError as error:
            return f"is no chat template: {said(error)} (line {error.lineno} of the template)"
        except Exception:  # noqa: BLE001 - it compiles; without messages it may say anything
            return None
        return None

    def _chat(self, chat: Conversation) -> Rendered:
        template = self.template or DEFAULT_TEMPLATE
        if self.train_on == "all":
            text, _ = self._apply(template, chat)
            self._refuse_unread(template, chat, text)
            return Rendered(text=text, spans=None, special_tokens=False, ends=False, notes=chat.notes)
        turns = [index for index, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if _GENERATION.search(template):
            text, spans = self._apply(template, chat, generation=True)
            if len(spans) != len(turns):
                raise RowError(f"the chat template marks {len(spans)} spans for {len(turns)} assistant messages")
        else:
            text, spans = self._by_prefixes(template, chat, turns)
        self._refuse_unread(template, chat, text)
        kept = [span for span, turn in zip(spans, turns, strict=True) if chat.learns[turn]]
        if self.train_on == "completion":
            kept = kept[-1:]
        return Rendered(text=text, spans=tuple(kept), special_tokens=False, ends=False, notes=chat.notes)

    def _refuse_unread(self, template: str, chat: Conversation, text: str) -> None:
        """Raises RowError where a row says something that the template writes nothing about."""
        for what, without in _without_each(chat):
            try:
                lost = self._apply(template, without)[0] == text
            except RowError:
                continue  # it reads it: without it, it refuses the row
            if lost:
                raise RowError(
                    f"{what} is not read by the chat template and would be lost; remove it, or name a template that "
                    "writes it in data.chat_template"
                )

    def _by_prefixes(self, template: str, chat: Conversation, turns: list[int]) -> tuple[str, list[Span]]:
        whole, _ = self._apply(template, chat)
        spans: list[Span] = []
        for turn in turns:
            prompt, _ = self._apply(template, chat, until=turn, prompting=True)
            is_last = turn + 1 == len(chat.messages)
            answered = whole if is_last else self._apply(template, chat, until=turn + 1)[0]
            if not (answered.startswith(prompt) and whole.startswith(answered)):
                raise RowError(_UNSTABLE)
            turn_end = len(answered.rstrip()) if answered.rstrip().endswith(self.end_marks) else len(answered)
            spans.append((len(prompt), turn_end))
        return whole, spans

    def _apply(
        self,
        template: str,
        chat: Conversation,
        *,
        until: int | None = None,
        prompting: bool = False,
        generation: bool = False,
    ) -> tuple[str, list[Span]]:
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        try:
            texts, spans = render(
                conversations=[chat.messages[:until]],
                tools=chat.tools,
                chat_template=template,
                add_generation_prompt=prompting,
                return_assistant_tokens_mask=generation,
                **self.special_tokens,
            )
        except MemoryError:
            raise TemplateMemoryError from None
        except Exception as error:  # noqa: BLE001 - a template is a stranger's program and can raise anything
            raise RowError(f"the chat template refuses this row: {said(error)}") from None
        return _checked(texts[0]), spans[0] if generation else []


#: What a message may say beside its content. Other keys (identifiers, names, times, ratings) tell about it.
_SAID_BESIDE = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


def _without_each(chat: Conversation) -> Iterator[tuple[str, Conversation]]:
    """(name, the conversation without it) of all that a row says beside roles and contents."""
    if chat.tools:
        yield "tools", replace(chat, tools=None)
    for key in _SAID_BESIDE:
        places = [index for index, message in enumerate(chat.messages) if key in message]
        if places:
            bare = [{name: value for name, value in message.items() if name != key} for message in chat.messages]
            name = f"{key} of message {places[0] + 1} ({chat.messages[places[0]]['role']})"
            yield name, replace(chat, messages=bare)


_UNSTABLE = (
    "the chat template rewrites earlier turns, so the assistant's part cannot be told apart; use train_on: all, or "
    "data.chat_template with a template that does not, or one with {% generation %} blocks"
)


def _checked(text: str) -> str:
    if len(text) > MAX_RENDERED_CHARACTERS:
        raise RowError(f"becomes {len(text)} characters of text; at most {MAX_RENDERED_CHARACTERS} are read")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code < 0xDD00:  # a byte of the file
            raise RowError("is not UTF-8 text; save the file as UTF-8") from None
        raise RowError(f"holds half a character (\\u{code:04x}), which no encoding can write; remove it") from None
    return text
