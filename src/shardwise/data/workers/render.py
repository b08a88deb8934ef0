"""Turns examples into text, with the spans of characters that are trained.

The template is `data.chat_template`, else the tokenizer's own, else `DEFAULT_TEMPLATE`. A pair of
prompt and completion becomes a chat where one of the first two exists, else prompt + completion +
EOS. Plain text is text + EOS.

| train_on     | conversation                  | pair                    | text          |
|--------------|-------------------------------|-------------------------|---------------|
| `auto`       | every assistant message       | the completion          | everything    |
| `assistant`  | every assistant message       | the completion          | refused       |
| `completion` | the last assistant message    | the completion          | refused       |
| `all`        | everything                    | everything              | everything    |

An assistant's span includes its end-of-turn token. Spans come from `{% generation %}` blocks, else
from rendering the conversation up to each trained message and with it, once for all rows of one
shape; a template that rewrites turns before a trained one is refused. The text is tokenised once,
so no token is split by a span. Templates are rendered in a sandbox, in a worker process with
limits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shardwise.data.read.formats import (
    AnyExample,
    Conversation,
    Example,
    Labelled,
    Pair,
    Preference,
    Text,
    answers_of,
    chat_of,
    shared,
)
from shardwise.data.read.messages import RowError
from shardwise.data.workers.ready import AS_IT_IS, ONE_END, Marks, marks_of
from shardwise.data.workers.said import (
    LEFT_OUT,
    REASONING,
    UNREAD,
    Message,
    Place,
    calls_in,
    complaint,
    lost_of,
    mark,
    marked,
    replaced,
    said_in,
    shape_of,
    unwritten,
    with_text_arguments,
)
from shardwise.data.workers.shapes import Shape, cut, points
from shardwise.data.workers.template import Span, Template, checked
from shardwise.spec.job.data import Rendered as IsRendered
from shardwise.spec.job.data import TrainOn

#: For tokenizers without a chat template. Turns end with the tokenizer's own EOS, so that no token
#: need be added to the vocabulary and generation stops where the model was trained to stop.
DEFAULT_TEMPLATE = (
    "{{ bos_token or '' }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One example as text. `spans`: character ranges that are trained, None for all;
    `special_tokens`: the tokenizer adds its own, which no template has written; `notes`: what was
    done with the row that its reader would not guess, each as a sentence without figures."""

    text: str
    spans: tuple[Span, ...] | None
    special_tokens: bool
    ends: bool
    notes: tuple[str, ...] = ()


NO_CHAT = (
    "the prompt is text and no list of messages, and is taken as it is, without the chat template; to put it there "
    "write messages, or data.rendered: false"
)

#: Shapes of rows that are remembered; rows of more are rendered anew.
MAX_SHAPES = 1000
#: A mark beside those of a shape.
_OTHER = mark(10**6)


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Renders examples for one tokenizer. `template`: its text, or several by their names, of which
    `tool_use` is for rows with tools; `special_tokens`: what templates read, by name; `end_marks`:
    all special tokens, one of which ends a turn; `rendered`: prompts of pairs were put into the
    template before; `stop_marks`: tokens behind which a text needs no EOS."""

    template: str | Mapping[str, str] | None
    special_tokens: Mapping[str, Any]
    end_marks: tuple[str, ...]
    train_on: TrainOn
    rendered: IsRendered = "auto"
    stop_marks: tuple[str, ...] = ()
    _shapes: dict[Any, Shape] = field(default_factory=dict[Any, Shape], repr=False)

    @cached_property
    def templates(self) -> dict[str, Template]:
        """By name; one without a name is the `default`."""
        named = self.template or DEFAULT_TEMPLATE
        sources = {"default": named} if isinstance(named, str) else named
        return {name: Template(source, self.special_tokens) for name, source in sources.items()}

    def sides(self, example: AnyExample) -> tuple[Rendered, ...]:
        """The rows of an example: chosen and rejected, or one. Raises as `render`."""
        render: Any = self._compared if isinstance(example, Preference | Labelled) else self.render
        return tuple(map(render, answers_of(example)))

    def _compared(self, example: Conversation | Pair) -> Rendered:
        """An answer to be compared with others: all counts that stands behind its prompt, as in
        TRL; text that is no chat is put into a template where the job says so alone."""
        if isinstance(example, Pair):
            if self.template is None or self.rendered is not False:
                text = example.prompt + example.completion
                spans = ((len(example.prompt), len(text)),)
                return self._plain(text, spans, notes=() if self.template is None else (NO_CHAT,))
            example = chat_of(example.prompt, example.completion)
        elif self.rendered is True:
            raise RowError(_RENDERED_CHAT)
        elif example.excluded:
            marked = f"message {example.excluded} is marked as not trained, and all behind the prompt is compared"
            raise RowError(f"{marked}; remove the mark")
        rendered = self._chat(example)
        start = min(first for first, _ in rendered.spans or ((0, 0),))
        return replace(rendered, spans=((start, len(rendered.text)),))

    def render(self, example: Example) -> Rendered:
        """The text and what of it is trained. Raises RowError: the example cannot be rendered, or
        not with these masks; TemplateMemoryError: it wants more memory than a worker may take."""
        match example:
            case Text():
                if self.train_on in ("assistant", "completion"):
                    what = f"train_on: {self.train_on} has no meaning for plain text"
                    raise RowError(f"{what}; use train_on: auto or all")
                return self._plain(example.text, None)
            case Pair(prompt=prompt, completion=completion):
                is_ready = self._marks.hold(prompt) if self.rendered == "auto" else self.rendered
                if self.template is not None and not is_ready:
                    return self._chat(chat_of(prompt, completion))
                text = prompt + completion
                spans = None if self.train_on == "all" else ((len(prompt), len(text)),)
                return self._plain(text, spans, notes=() if self.template is None else (AS_IT_IS,))
            case Conversation():
                if self.train_on == "all" and example.excluded:
                    marked = f"message {example.excluded} is marked as not trained, and train_on: all trains everything"
                    raise RowError(f"{marked}; use train_on: assistant, or remove the mark")
                if self.rendered is True:
                    raise RowError(_RENDERED_CHAT)
                return self._chat(example)

    def _plain(self, text: str, spans: tuple[Span, ...] | None, *, notes: tuple[str, ...] = ()) -> Rendered:
        """Text without a template: with one BOS, where the tokenizer writes one, and one EOS."""
        bos = self.special_tokens.get("bos_token")
        return Rendered(
            text=checked(text),
            spans=spans,
            special_tokens=not (bos and text.startswith(bos)),
            ends=not text.rstrip().endswith(self.stop_marks),
            notes=notes,
        )

    @cached_property
    def _marks(self) -> Marks:
        template = self.templates.get("default")
        bos = self.special_tokens.get("bos_token") or ""
        return Marks() if template is None else marks_of(template, special=self.end_marks, bos=bos)

    def _template(self, tools: Any) -> Template:
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        if name in self.templates:
            return self.templates[name]
        names = ", ".join(sorted(self.templates))
        raise RowError(f"the model has chat templates named {names} and no default; name one in data.chat_template")

    def _chat(self, chat: Conversation) -> Rendered:
        template, trained = self._template(chat.tools), self._trained(chat)
        chat = self._with_one_end(chat)
        shape = self._shape(template, chat, trained)
        if shape.text_arguments:
            chat = replace(chat, messages=with_text_arguments(chat.messages))
        blocks = template.marks_answers and self.train_on != "all"
        text, found = template.render(chat.messages, tools=chat.tools, blocks=blocks)
        filled = shape.fill(chat.messages, text)
        notes = self._losses(template, chat, trained, shape, text=None if filled is not None else text)
        if self.train_on == "all":
            spans = None
        elif blocks:
            spans = tuple(_of_blocks(found, chat.messages, trained))
        elif filled is not None and shape.spans is not None:
            spans = tuple(filled)
        else:
            spans = tuple(self._by_prefixes(template, chat, text, trained))
        return Rendered(text=text, spans=spans, special_tokens=False, ends=False, notes=(*chat.notes, *notes))

    def _with_one_end(self, chat: Conversation) -> Conversation:
        """Without the marks at the ends of answers that the template writes itself."""
        shorter: dict[Place, str] = {
            (turn, ("content",)): text
            for turn in _turns(chat.messages)
            if isinstance(content := chat.messages[turn].get("content"), str)
            and (text := self._marks.without_end(content)) is not None
        }
        if not shorter:
            return chat
        return replace(chat, messages=replaced(chat.messages, shorter), notes=(*chat.notes, ONE_END))

    def _trained(self, chat: Conversation) -> tuple[int, ...]:
        if self.train_on == "all":
            return tuple(range(len(chat.messages)))
        turns = _turns(chat.messages)[-1 if self.train_on == "completion" else 0 :]
        return tuple(turn for turn in turns if chat.learns[turn])

    def _shape(self, template: Template, chat: Conversation, trained: tuple[int, ...]) -> Shape:
        """Raises RowError: the template does not read the tools."""
        key = (tuple(map(shape_of, chat.messages)), trained, json.dumps(chat.tools) if chat.tools else "")
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) == MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = self._new_shape(template, chat, trained)
        return shape

    def _new_shape(self, template: Template, chat: Conversation, trained: Sequence[int]) -> Shape:
        messages, marks = marked(chat.messages)
        text = _rendered(template, messages, tools=chat.tools)
        in_text = False
        if any(calls_in(messages)) and (text is None or _prints_objects(messages, text)):
            other, other_marks = marked(with_text_arguments(chat.messages))
            if (other_text := _rendered(template, other, tools=chat.tools)) is not None:
                messages, marks, text, in_text = other, other_marks, other_text, True
        if text is None:
            return Shape()
        if chat.tools and _rendered(template, messages, tools=None) == text:
            raise RowError(f"tools is {UNREAD}")
        parts, tail, literals = cut(text, list(marks))
        spans = None
        if self.train_on != "all" and not template.marks_answers:
            try:
                spans = points(self._by_prefixes(template, replace(chat, messages=messages), text, trained), literals)
            except RowError:
                spans = None  # each row says so itself
        lost = [place for place, own in marks.items() if own.strip() not in text]
        earlier = frozenset(place for place in lost if _writes_last(template, messages, place, tools=chat.tools))
        return Shape(parts=parts, tail=tail, spans=spans, lost=frozenset(lost), earlier=earlier, text_arguments=in_text)

    def _losses(
        self, template: Template, chat: Conversation, trained: Sequence[int], shape: Shape, *, text: str | None
    ) -> tuple[str, ...]:
        """Notes on what is left out. Raises RowError: more is lost. `text`: if not the shape's."""
        left_out = {place for place in shape.earlier if place[0] not in trained}
        suspects = {*shape.lost, *(() if text is None else unwritten(chat.messages, text))} - left_out
        last = max(_turns(chat.messages), default=-1)
        for place, piece in lost_of(template, chat.messages, suspects, tools=chat.tools) if suspects else ():
            is_cut = bool(piece) and chat.messages[place[0]]["role"] == "assistant" and place[0] < last
            is_earlier = is_cut or place in shape.earlier
            if not is_earlier or place[0] in trained:
                raise RowError(complaint(chat.messages, place, piece, is_earlier=is_earlier))
            left_out.add(place)
        return (LEFT_OUT,) if left_out else ()

    def _by_prefixes(self, template: Template, chat: Conversation, whole: str, trained: Sequence[int]) -> list[Span]:
        spans: list[Span] = []
        for turn in trained:
            prompt = self._prompt(template, chat, turn, whole)
            is_last = turn + 1 == len(chat.messages)
            answered = whole if is_last else template.render(chat.messages[: turn + 1], tools=chat.tools)[0]
            if not whole.startswith(answered):
                answered = self._without_last_mark(answered, whole)
            if not (answered.startswith(prompt) and whole.startswith(answered)):
                raise RowError(_UNSTABLE)
            turn_end = len(answered.rstrip()) if answered.rstrip().endswith(self.end_marks) else len(answered)
            spans.append((len(prompt), turn_end))
        return spans

    def _without_last_mark(self, answered: str, whole: str) -> str:
        """A conversation without what a template writes after any last turn, as Phi's mark."""
        for behind in self.end_marks:
            shorter = answered.rstrip().removesuffix(behind)
            if whole.startswith(shorter) and shorter.rstrip().endswith(self.end_marks):
                return shorter
        return answered

    def _prompt(self, template: Template, chat: Conversation, turn: int, whole: str) -> str:
        """What stands before a turn. Not every template can end before one: of a chat that the
        assistant opens it is what stands before the first text. A template may ask for more than it
        then writes (`<think>`): what it asks for and writes is the prompt."""
        try:
            before = chat.messages[:turn]
            prompt, _ = template.render(before, tools=chat.tools, prompting=True)
            if whole.startswith(prompt):
                return prompt
            if turn:
                told = _rendered(template, before, tools=chat.tools)
                is_told = told is not None and prompt.startswith(told) and whole.startswith(told)
                return prompt[: shared(prompt, whole)] if is_told else prompt
        except RowError:
            pass
        message = chat.messages[turn : turn + 1]
        own = replaced(message, {place: _OTHER for place, _ in said_in(message)})
        text, _ = template.render([*chat.messages[:turn], *own], tools=chat.tools)
        prompt, found, _ = text.partition(_OTHER)
        if not found:
            raise RowError(_UNSTABLE)
        return prompt


def _turns(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def _of_blocks(spans: list[Span], messages: Sequence[Message], trained: Sequence[int]) -> list[Span]:
    turns = _turns(messages)
    if len(spans) != len(turns):
        raise RowError(f"the chat template marks {len(spans)} spans for {len(turns)} assistant messages")
    return [span for span, turn in zip(spans, turns, strict=True) if turn in trained]


def _rendered(template: Template, messages: Sequence[Message], *, tools: Any) -> str | None:
    """The text, or None where the template refuses the messages."""
    try:
        return template.render(messages, tools=tools)[0]
    except RowError:
        return None


def _writes_last(template: Template, messages: Sequence[Message], place: Place, *, tools: Any) -> bool:
    """Whether reasoning of an earlier turn is lost, of a kind that is written of the last one."""
    index, (key, *_) = place
    last = max(_turns(messages), default=-1)
    if key not in REASONING or index >= last:
        return False
    asked = [*messages[:last], {**messages[last], key: _OTHER}, *messages[last + 1 :]]
    return _OTHER in (_rendered(template, asked, tools=tools) or "")


def _prints_objects(messages: Sequence[Message], text: str) -> bool:
    """Whether arguments of calls stand in a text as Python prints them."""
    return any(call["arguments"] and str(call["arguments"]) in text for _, _, call in calls_in(messages))


_RENDERED_CHAT = "data.rendered: true has no meaning for a chat, which is put into a template; remove it"

_UNSTABLE = (
    "the chat template rewrites earlier turns, so the assistant's part cannot be told apart; use train_on: all, or "
    "train_on: completion, which trains the last turn alone, or data.chat_template with a template that does not, or "
    "one with {% generation %} blocks"
)
