"""What a row says is in what is rendered, under the families' templates, or it is refused."""

from dataclasses import replace
from typing import Any

import pytest

from shardwise.data.read.formats import Conversation, conversation
from shardwise.data.read.messages import RowError
from shardwise.data.workers.said import LEFT_OUT
from shardwise.data.workers.tokens import Tokenizer
from tests.unit.data.helpers import TEMPLATES
from tests.unit.data.test_masks import GENERATION, UNSTABLE, rules, shown

LAST_THOUGHT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{% if loop.last and m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)


def told(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def u(content: str = "hi") -> dict[str, Any]:
    return told("user", content)


def a(content: str = "hello", **more: Any) -> dict[str, Any]:
    return told("assistant", content, **more)


def call(content: str = "", /, **arguments: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return a(content, tool_calls=[{"id": "abcdefghi", "type": "function", "function": function}])


S, T = told("system", "be kind"), told("tool", '{"sky": "blue"}', tool_call_id="abcdefghi")
TOOLS = [{"type": "function", "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("train_on", ["completion", "all"])
@pytest.mark.parametrize(
    ("template", "messages", "lost"),
    [
        ("QWEN25", [told("developer", "be brief"), u(), a()], r"content of message 1 \(developer\)"),
        ("QWEN25", [S, u(), told("system", "be brief"), u(), a()], r"content of message 3 \(system\)"),
        ("QWEN25", [S, u("the"), told("system", "the"), u("the"), a("the")], r"content of message 3 \(system\)"),
        ("LLAMA2", [u(), a(), told("tool", "four"), a("so")], r"content of message 3 \(tool\)"),
        ("LLAMA2", [S, u(), told("system", "be brief"), a()], r"content of message 3 \(system\)"),
        ("LLAMA31", [u(), call("I look.", at="sky"), T, a()], r"content of message 2 \(assistant\)"),
        ("MISTRAL", [u(), call("I look.", at="sky"), T, a()], r"content of message 2 \(assistant\)"),
        ("ZEPHYR", [u(), a(), told("tool", "four"), a("so")], r"content of message 3 \(tool\)"),
        ("ZEPHYR", [u(), call(at="sky"), T, a()], r"tool_calls of message 2 \(assistant\)"),
        ("VICUNA", [S, u(), a()], r"content of message 1 \(system\)"),
        ("PHI", [u(), a(reasoning_content="so")], r"reasoning_content of message 2 \(assistant\)"),
        ("HARMONY", [u(), told("developer", "be brief"), a()], r"content of message 2 \(developer\)"),
        ("QWEN25", [told("developer", "<brief>"), u(), a()], r"content of message 1 \(developer\)"),
        ("DEEPSEEK", [u(), a("<think>\nwhy\n</think>\n\nhello")], r"'why' in content of message 2 \(assistant\)"),
        ("DEEPSEEK", [S, u(), told("system", "be brief"), a()], r"content of message 1 \(system\)"),
        ("GLM", [u(), a(reasoning="so")], r"reasoning of message 2 \(assistant\)"),
        (None, [u(), call(at="sky")], r"tool_calls of message 2 \(assistant\)"),
        (GENERATION, [u(), call(at="sky")], r"tool_calls of message 2 \(assistant\)"),
        (None, [u(), a(reasoning_content="so")], r"reasoning_content of message 2 \(assistant\)"),
    ],
)
def test_a_text_that_the_template_leaves_out_refuses_the_row_with_its_message(chat, template, messages, lost, train_on):
    with pytest.raises(RowError, match=f"^{lost} is not read by the chat template and would be lost; remove it, or "):
        shown(chat, conversation(messages), rules(template=TEMPLATES.get(template, template), train_on=train_on))


def test_tools_that_the_template_leaves_out_refuse_the_row(chat) -> None:
    with pytest.raises(RowError, match=r"^tools is not read by the chat template and would be lost; remove it, or "):
        shown(chat, conversation([u(), a()], tools=TOOLS), rules())


LONG = ["  ok \n", "ok", 'a "quoted"\n\tline\\', "tschüß 🙂", "if x < y and <b>z</b>: [INST]", "<|im_end|> ends"]
WHOLE: list[tuple[str, list[dict[str, Any]], Any]] = [
    *((family, [u(text), a(text)], None) for family in TEMPLATES for text in LONG),
    *((family, [S, u("ok"), a("ok"), u("ok"), a("ok")], None) for family in TEMPLATES if family != "VICUNA"),
    *((family, [u(""), a("hello"), u(" "), a("ok")], None) for family in TEMPLATES),
    *(
        (family, [u(), call(at='Zürich "W"', depth=2, deep=True, near=None, of=[1, {"x": "y"}]), T, a("blue")], tools)
        for family in ("QWEN25", "QWEN3", "LLAMA31", "MISTRAL", "DEEPSEEK", "HARMONY", "GLM")
        for tools in (None, TOOLS)
        if tools is None or family not in ("DEEPSEEK", "HARMONY")
    ),
    ("QWEN3", [u(), call("I look.", at="sky"), T, a("<think>\nso\n\nyes\n</think>\n\nblue")], TOOLS),
    ("QWEN3", [u(), call(), T, T, a("blue", reasoning_content="\nso\n", thinking="\nso\n")], TOOLS),
    ("MISTRAL", [S, u(), a(), u("and"), a("ok")], TOOLS),
    ("HARMONY", [told("developer", "be kind"), u(), a(thinking="so")], None),
    ("PHI", [told("developer", "be kind"), u(), told("tool", "four"), a()], None),
]


@pytest.mark.parametrize(("family", "messages", "tools"), WHOLE)
def test_a_row_that_is_whole_under_its_template_is_not_refused(chat, family, messages, tools) -> None:
    for train_on in ("all", "completion"):
        text = shown(chat, conversation(messages, tools=tools), rules(template=TEMPLATES[family], train_on=train_on))
        assert "⟦" in text


def test_a_loss_is_found_beside_a_text_that_the_template_checks_and_writes_otherwise(chat: Tokenizer) -> None:
    checks = (
        "{% for m in messages %}{% if m.role == 'user' %}"
        "{% if m.content not in ['yes', 'no'] %}{{ raise_exception('say yes or no') }}{% endif %}"
        "Q{{ m.content | upper }}"
        "{% elif m.role == 'assistant' %}A{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    )
    renderer = chat.renderer(rules(template=checks, train_on="all"))
    assert "QYES" in renderer.render(conversation([u("yes"), a()])).text
    with pytest.raises(RowError, match=r"content of message 1 \(developer\) is not read by the chat template"):
        renderer.render(conversation([told("developer", "be brief"), u("yes"), a()]))


def test_a_template_gets_arguments_as_text_or_is_the_one_for_tools_where_it_expects_so(chat: Tokenizer) -> None:
    messages = [u(), call(at="Zürich"), T, a()]
    text = shown(chat, conversation(messages), rules(template=TEMPLATES["DEEPSEEK"], train_on="completion"))
    assert '```json\n{"at": "Zürich"}\n```' in text
    each = "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    printed = "{% for m in messages %}{{ m.content }}" + each + "{% endfor %}"
    text = shown(chat, conversation([u(), call(at="Zürich"), T, a()]), rules(template=printed, train_on="all"))
    assert text == '⟦hilook{"at": "Zürich"}{"sky": "blue"}hello⟧'
    named = {"default": TEMPLATES["PHI"], "tool_use": TEMPLATES["QWEN25"]}
    renderer = replace(chat.renderer(rules()), template=named)
    assert renderer.render(conversation([u(), a()])).text.startswith("<|user|>")
    assert "# Tools" in renderer.render(conversation([u(), a()], tools=TOOLS)).text
    with pytest.raises(RowError, match=r"named rag, tool_use and no default; name one in data\.chat_template"):
        replace(chat.renderer(rules()), template={"rag": "", "tool_use": ""}).render(conversation([u(), a()]))


THOUGHTS = [u(), a("four", reasoning_content="two and two"), u("and"), a("six", reasoning_content="four and two")]
IN_CONTENT = [u(), a("<think>\ntwo and two\n</think>\n\nfour"), u("and"), a("<think>\nwhy\n</think>\n\nsix")]


@pytest.mark.parametrize("messages", [THOUGHTS, IN_CONTENT])
def test_reasoning_of_earlier_turns_that_a_template_leaves_out_is_said_where_they_are_not_trained(chat, messages):
    renderer = chat.renderer(rules(template=TEMPLATES["QWEN3"], train_on="completion"))
    for _ in range(2):  # the second one's shape is known
        rendered = renderer.render(conversation(messages))
        assert rendered.notes == (LEFT_OUT,)
        assert "two and two" not in rendered.text.partition("<think>")[0]
    assert renderer.render(conversation([*messages[:3], a("six")])).notes == (LEFT_OUT,)
    assert renderer.render(conversation([u(), a(), u(), a("six", reasoning_content="x")])).notes == ()


@pytest.mark.parametrize(
    ("template", "train_on", "messages", "lost"),
    [
        (TEMPLATES["QWEN3"], "all", THOUGHTS, r"reasoning_content of message 2 \(assistant\)"),
        (TEMPLATES["QWEN3"], "all", IN_CONTENT, r"'two and two' in content of message 2 \(assistant\)"),
        (LAST_THOUGHT, "auto", THOUGHTS, r"reasoning_content of message 2 \(assistant\)"),
        (LAST_THOUGHT, "all", THOUGHTS, r"reasoning_content of message 2 \(assistant\)"),
    ],
)
def test_a_trained_turn_that_loses_its_own_reasoning_is_refused(chat, template, train_on, messages, lost) -> None:
    with pytest.raises(RowError, match=f"^{lost} is not read by .* or train the last turn alone with train_on: compl"):
        shown(chat, conversation(messages), rules(template=template, train_on=train_on))


def test_only_turns_that_are_trained_must_follow_from_what_stands_before_them(chat: Tokenizer) -> None:
    expected = (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n<|im_start|>user\nand<|im_end|>\n"
        "<|im_start|>assistant\n⟦<think>\n\n</think>\n\nsix<|im_end|>⟧\n"
    )
    messages = [u(), a("four"), u("and"), a("six")]
    assert shown(chat, conversation(messages), rules(template=TEMPLATES["QWEN3"], train_on="completion")) == expected
    pair = Conversation(messages=messages, learns=(False, False, False, True))
    assert shown(chat, pair, rules(template=TEMPLATES["QWEN3"])) == expected
    with pytest.raises(RowError, match="rewrites earlier turns"):
        shown(chat, conversation(messages), rules(template=TEMPLATES["QWEN3"]))
    with pytest.raises(RowError, match="rewrites earlier turns"):
        shown(chat, conversation(messages), rules(template=UNSTABLE, train_on="completion"))


#: Asks for reasoning, and writes an answer without any, as R1's and Nemotron's do.
ASKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and keep %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "before", "behind"), [(ASKS, "", ""), ("{% set keep = true %}" + ASKS, "<think>", "</think>")]
)
@pytest.mark.parametrize("answer", ["hello", "<b>hello</b>"])
def test_a_template_that_asks_for_more_than_it_writes_trains_all_the_rest(chat, template, before, behind, answer):
    turn = f"<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n{before}⟦{behind}{answer}<|im_end|>⟧"
    assert shown(chat, conversation([u(), a(answer), u(), a(answer)]), rules(template=template)) == 2 * turn


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            "QWEN25",
            "<|im_start|>system\nBe of help.<|im_end|>\n<|im_start|>assistant\n⟦ hello<|im_end|>⟧\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n⟦ok<|im_end|>⟧\n",
        ),
        ("LLAMA2", "⟦ hello </s>⟧<s>[INST] hi [/INST]⟦ ok </s>⟧"),
        ("PHI", "<|assistant|>\n⟦ hello<|im_end|>⟧\n<|user|>\nhi<|im_end|>\n<|assistant|>\n⟦ok<|im_end|>\n</s>⟧"),
    ],
)
def test_a_chat_may_be_opened_by_the_assistant(chat: Tokenizer, family: str, expected: str) -> None:
    assert shown(chat, conversation([a(" hello"), u(), a("ok")]), rules(template=TEMPLATES[family])) == expected
