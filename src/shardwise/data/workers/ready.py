"""Marks that rows carry already: a prompt put into a template before, and ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.data.read.messages import RowError
from shardwise.data.workers.said import mark
from shardwise.data.workers.template import Template

AS_IT_IS = "the prompt holds the chat template's marks and is taken as it is, without the template"
ONE_END = "the answer ended in the mark that the chat template writes behind it, which is written once"


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What a template writes around a question and its answer; nothing where it takes no such pair.
    `tokens`: special ones before the answer; `opening`, `closing`: what stands before the question,
    BOS aside, and behind it, white space aside; `end`: the special token behind an answer."""

    tokens: tuple[str, ...] = ()
    opening: str = ""
    closing: str = ""
    end: str = ""

    def hold(self, prompt: str) -> bool:
        """Whether a prompt was put into the template before, by how it begins or ends."""
        bare = prompt.strip()
        begins = self.tokens + ((self.opening,) if self.opening else ())
        # Where a template breaks lines is written in many ways.
        return bare.startswith(begins) or (self.closing != "" and "".join(bare.split()).endswith(self.closing))

    def without_end(self, answer: str) -> str | None:
        """An answer without the mark at its end, where it has one and more."""
        bare = answer.rstrip()
        shorter = bare.removesuffix(self.end)
        return shorter if self.end and shorter != bare and shorter.strip() else None


def marks_of(template: Template, *, special: Sequence[str], bos: str) -> Marks:
    """Of a template, from its rendering of one question and answer."""
    asked, answered = mark(0), mark(1)
    chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    try:
        text, _ = template.render(chat, tools=None)
        prompt, _ = template.render(chat[:1], tools=None, prompting=True)
    except RowError:
        return Marks()
    opening, closing = text.partition(asked)[0].removeprefix(bos).strip(), "".join(prompt.partition(asked)[2].split())
    behind = text.partition(answered)[2].lstrip()
    ends = [token for token in special if token.strip() and behind.startswith(token)]
    before = text.partition(answered)[0]
    tokens = tuple(token for token in special if token.strip() and token in before)
    return Marks(tokens=tokens, opening=opening, closing=closing, end=max(ends, key=len, default=""))
