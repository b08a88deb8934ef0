"""Which tokens are trained, by hand: the trained text stands between brackets."""

from itertools import pairwise

import numpy as np
import pytest

from shardwise.data.read.formats import Conversation, Example, Pair, Text, conversation
from shardwise.data.read.messages import RowError
from shardwise.data.workers.tokens import Rules, Tokenizer, Tokens, shorten
from shardwise.spec.job.data import OverLong, TrainOn
from tests.unit.data.helpers import TEMPLATES

GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)

#: Numbers the messages from the last: what was prompted is not what stands in the whole.
UNSTABLE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ loop.revindex }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def rules(*, template=None, train_on: TrainOn = "auto", max_length=1000, over_long: OverLong = "error") -> Rules:
    return Rules(template=template, columns={}, train_on=train_on, max_length=max_length, over_long=over_long)


def talk(*contents: str) -> Conversation:
    roles = ("user", "assistant")
    return conversation([{"role": roles[turn % 2], "content": text} for turn, text in enumerate(contents)])


def shown(tokenizer: Tokenizer, example: Example, wanted: Rules) -> str:
    """The decoded tokens, with brackets around each run of trained ones."""
    (tokens,) = tokenizer.encode([tokenizer.renderer(wanted).render(example)])
    text = ""
    edges = [0, *(np.flatnonzero(np.diff(tokens.trained)) + 1).tolist(), len(tokens.ids)]
    for start, stop in pairwise(edges):
        piece = tokenizer.decode(tokens.ids[start:stop].tolist())
        text += f"⟦{piece}⟧" if tokens.trained[start] else piece
    return text


TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m.reasoning_content and loop.last %}({{ m.reasoning_content }}){% endif %}{{ m['content'] }}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "7", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "f", "tool_call_id": "7", "content": "four"}
ANSWER = {"role": "assistant", "content": "hello", "reasoning_content": "so"}
FOUR = talk("hi", "hello", "two?", "four 🙂.")
LAST = Conversation(messages=FOUR.messages, learns=(False, False, False, True))
FIRST = Conversation(messages=FOUR.messages, learns=(False, True, False, False))
TOLD = conversation([{**USER, "name": "Ann"}, {"role": "assistant", "content": "hello", "rating": "good"}])
CALLED = conversation([USER, CALLS, RESULT, ANSWER], tools=[{"name": "f"}])
PAIR = Pair(prompt="two and two?", completion=" four.")
EVERY_ANSWER = (
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦hello<|im_end|>⟧\n"
    "<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n⟦four 🙂.<|im_end|>⟧\n"
)
LAST_ANSWER = EVERY_ANSWER.replace("⟦hello<|im_end|>⟧", "hello<|im_end|>")
EVERYTHING = "⟦<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n⟧"
TOOLS_AND_ANSWERS = (
    '<|im_start|>system\n[{"name": "f"}]<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
    '<|im_start|>assistant\n⟦{"name": "f", "arguments": {"x": 1}}<|im_end|>⟧\n<|im_start|>tool\nfour<|im_end|>\n'
    "<|im_start|>assistant\n⟦(so)hello<|im_end|>⟧\n"
)
OF_A_CHAT: list[tuple[Example, Rules, str]] = [
    (FOUR, rules(), EVERY_ANSWER),
    (FOUR, rules(template=GENERATION), EVERY_ANSWER),
    *((LAST, rules(template=template), LAST_ANSWER) for template in (None, GENERATION)),
    *((FOUR, rules(template=template, train_on="completion"), LAST_ANSWER) for template in (None, GENERATION)),
    (FIRST, rules(train_on="completion"), EVERY_ANSWER.replace("⟦", "").replace("⟧", "")),
    *((one, rules(train_on="all"), EVERYTHING) for one in (TOLD, Pair(prompt="hi", completion="hello"))),
    (CALLED, rules(template=TOOLS), TOOLS_AND_ANSWERS),
]
LLAMA2 = rules(template=TEMPLATES["LLAMA2"])
WITHOUT_A_TEMPLATE: list[tuple[Example, Rules, str]] = [
    (talk("hi", "hello"), rules(), "<s><|im_start|>user\nhi</s>\n<|im_start|>assistant\n⟦hello</s>⟧\n"),
    (talk("hi", "a", "b", "c"), LLAMA2, "<s>[INST] hi [/INST]⟦ a </s>⟧<s>[INST] b [/INST]⟦ c </s>⟧"),
    *((PAIR, rules(train_on=train_on), "two and two?⟦ four.</s>⟧") for train_on in ("auto", "assistant")),
    (PAIR, rules(train_on="all"), "⟦two and two? four.</s>⟧"),
    *((Text(text=text), rules(), "⟦the cat</s>⟧") for text in ("the cat", "the cat</s>")),
]


@pytest.mark.parametrize(("example", "wanted", "expected"), OF_A_CHAT)
def test_what_is_trained_of_a_chat(chat: Tokenizer, example: Example, wanted: Rules, expected: str) -> None:
    assert shown(chat, example, wanted) == expected


@pytest.mark.parametrize(("example", "wanted", "expected"), WITHOUT_A_TEMPLATE)
def test_what_is_trained_without_a_template(plain: Tokenizer, example: Example, wanted: Rules, expected: str) -> None:
    assert shown(plain, example, wanted) == expected


@pytest.mark.parametrize("train_on", ["assistant", "completion"])
def test_masks_that_have_no_meaning_for_plain_text_are_refused(plain: Tokenizer, train_on: TrainOn) -> None:
    with pytest.raises(RowError, match=f"{train_on} has no meaning for plain text; use train_on: auto or all"):
        shown(plain, Text(text="the cat"), rules(train_on=train_on))


def test_a_template_that_rewrites_or_raises_refuses_the_row(chat: Tokenizer) -> None:
    with pytest.raises(RowError, match=r"rewrites earlier turns.*use train_on: all, or"):
        shown(chat, FOUR, rules(template=UNSTABLE))
    assert "four 🙂." in shown(chat, FOUR, rules(template=UNSTABLE, train_on="all"))
    with pytest.raises(RowError, match="the chat template refuses this row: no robots"):
        shown(chat, talk("hi", "hello"), rules(template="{{ raise_exception('no robots') }}"))
    with pytest.raises(RowError, match="the chat template refuses this row: access to attribute '__class__'"):
        shown(chat, talk("hi", "hello"), rules(template="{{ ''.__class__.__mro__ }}"))


def tokens(length: int, *, trained_from: int) -> Tokens:
    return Tokens(ids=np.arange(length, dtype=np.int32), trained=np.arange(length) >= trained_from)


@pytest.mark.parametrize(
    ("row", "policy", "complaint"),
    [
        (tokens(11, trained_from=5), "error", "has 11 tokens; max_length is 10: raise max_length, or set over_long: "),
        (tokens(11, trained_from=5), "drop", None),
        (tokens(20, trained_from=10), "truncate", None),
        (tokens(5, trained_from=5), "error", "has no trained token"),
        (tokens(0, trained_from=0), "error", "has no token: the model's tokenizer makes nothing of its text"),
    ],
)
def test_rows_that_are_too_long_or_train_nothing(row: Tokens, policy: OverLong, complaint: str | None) -> None:
    found = shorten(row, rules(max_length=10, over_long=policy))
    assert found is None if complaint is None else str(found).startswith(complaint)


def test_a_row_is_cut_to_max_length() -> None:
    row = tokens(11, trained_from=5)
    kept = shorten(row, rules(max_length=10, over_long="truncate"))
    assert (len(kept.ids), kept.num_trained, kept.was_truncated) == (10, 5, True)
    assert shorten(row, rules(max_length=11)) is row
