"""A chat template, rendered in transformers' sandbox; what it raises becomes a sentence."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardwise.data.read.messages import RowError
from shardwise.errors import said

#: Characters of one rendered row; a template can make much of little.
MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


class TemplateMemoryError(Exception):
    """Rendering met the worker's memory limit: the whole data set stops, not one row."""


@dataclass(frozen=True)
class Template:
    """One chat template, and the special tokens that it reads, by name (`bos_token` ...)."""

    source: str
    special_tokens: Mapping[str, Any]

    @cached_property
    def marks_answers(self) -> bool:
        """Whether it says itself what the assistant's part is."""
        return _GENERATION.search(self.source) is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Any, prompting: bool = False, blocks: bool = False
    ) -> tuple[str, list[Span]]:
        """The text, and with `blocks` where its `{% generation %}` blocks stand. Raises RowError:
        the template refuses the messages; TemplateMemoryError."""
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        try:
            texts, spans = render(
                conversations=[messages],
                tools=tools,
                chat_template=self.source,
                add_generation_prompt=prompting,
                return_assistant_tokens_mask=blocks,
                **self.special_tokens,
            )
        except MemoryError:
            raise TemplateMemoryError from None
        except Exception as error:  # noqa: BLE001 - a template is a stranger's program and can raise anything
            raise RowError(f"the chat template refuses this row: {said(error)}") from None
        return checked(texts[0]), spans[0] if blocks else []

    def syntax_fault(self) -> str | None:
        """What keeps it from being compiled, or None."""
        from jinja2 import TemplateSyntaxError
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        try:
            render(conversations=[[]], chat_template=self.source, **self.special_tokens)
        except MemoryError:
            raise TemplateMemoryError from None
        except TemplateSyntaxError as error:
            return f"is no chat template: {said(error)} (line {error.lineno} of the template)"
        except Exception:  # noqa: BLE001 - it compiles; without messages it may say anything
            return None
        return None


def checked(text: str) -> str:
    """A row's text. Raises RowError: it is too long, or cannot be written as UTF-8."""
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
