from typing import Any, get_args

import pytest

from shardwise.data.read.formats import BY_NAME, FORMATS, Pair, Text, read_row, recognise
from shardwise.data.read.messages import RowError
from shardwise.spec.job.data import RowFormat
from tests.refusals import must_refuse, said_by

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
SYSTEM, ADD = {"role": "system", "content": "be kind"}, {"role": "user", "content": "add\n\n1 1"}
THREE = [ASSISTANT, USER, ASSISTANT]
SPOKEN = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
MORE = {**ASSISTANT, "anything": 1, "name": None, "tool_calls": [], "note": ""}
ROWS: list[tuple[str, dict[str, Any], list[dict[str, Any]], tuple[bool, ...]]] = [
    ("messages", {"messages": [USER, ASSISTANT], "text": "beside"}, [USER, ASSISTANT], (False, True)),
    ("messages", {"messages": [USER, MORE], "tools": None}, [USER, {**ASSISTANT, "anything": 1}], (False, True)),
    ("conversations", {"system": "be kind", "conversations": SPOKEN}, [SYSTEM, USER, ASSISTANT], (False, False, True)),
    ("instruction", {"instruction": "add", "input": "1 1", "output": "hello"}, [ADD, ASSISTANT], (False, True)),
    ("instruction", {"instruction": "hi", "output": "hello"}, [USER, ASSISTANT], (False, True)),
    ("instruction", {"instruction": "hi", "input": None, "output": "hello"}, [USER, ASSISTANT], (False, True)),
    ("question_answer", {"question": "hi", "answer": "hello"}, [USER, ASSISTANT], (False, True)),
    ("query_response", {"query": "hi", "response": "hello"}, [USER, ASSISTANT], (False, True)),
    ("prompt_completion", {"prompt": [ASSISTANT, USER], "completion": [ASSISTANT]}, THREE, (False, False, True)),
]


@pytest.mark.parametrize(("name", "row", "messages", "learns"), ROWS)
def test_rows_of_each_chat_format_are_recognised_by_their_columns_and_become_messages(name, row, messages, learns):
    form = recognise(tuple(row))
    example = read_row(form, row)
    assert form.name == name
    assert (example.messages, example.learns) == (messages, learns)


def test_pairs_text_parts_of_text_and_tools_are_read() -> None:
    pair = {"prompt": "a", "completion": "b"}
    assert read_row(recognise(tuple(pair)), pair) == Pair(prompt="a", completion="b")
    assert read_row(recognise(["text", "id"]), {"text": "a", "id": 3}) == Text(text="a")
    assert recognise(["text", "messages"], wanted="text").name == "text"
    assert set(get_args(RowFormat)) == {"auto", *BY_NAME}
    parts = [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}
    row = {"messages": [USER, call, {"role": "assistant", "content": parts}], "tools": [{"name": "f"}]}
    example = read_row(BY_NAME["messages"], row)
    assert example.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {}}]}
    assert example.messages[2]["content"] == "hello"
    assert example.tools == [{"name": "f"}]
    for tools in ('[{"name": "f"}]', [{"name": "f"}]):
        pair = read_row(BY_NAME["prompt_completion"], {"prompt": [USER], "completion": [ASSISTANT], "tools": tools})
        assert pair.tools == [{"name": "f"}]


@pytest.mark.parametrize("mark", ["weight", "train", "training", "loss_mask", "loss"])
def test_a_turn_that_a_row_marks_as_not_trained_is_not_trained(mark: str) -> None:
    first, last = [{**USER, mark: 0}, {**ASSISTANT, mark: False}], [USER, {**ASSISTANT, mark: None}]
    example = read_row(BY_NAME["messages"], {"messages": [*first, USER, {**ASSISTANT, mark: 1}, *last]})
    assert example.messages == [USER, ASSISTANT] * 3
    assert (example.learns, example.excluded) == ((False, False, False, True, False, True), 1)
    row = {"prompt": [USER], "completion": [{**ASSISTANT, mark: 0}, USER, {**ASSISTANT, mark: 1.0}]}
    pair = read_row(BY_NAME["prompt_completion"], row)
    assert (pair.learns, pair.excluded) == ((False, False, False, True), 2)


@pytest.mark.parametrize(("speaker", "role"), [("Human", "user"), (" USER ", "user"), ("prompter", "user")])
@pytest.mark.parametrize("answers", ["GPT", "ChatGPT", "bot", "AI", "Assistant", "model"])
def test_speakers_are_known_by_the_names_people_write(speaker: str, role: str, answers: str) -> None:
    for who, says in (("from", "value"), ("role", "content")):
        items = [{who: speaker, says: "hi"}, {who: answers, says: "hello"}]
        example = read_row(BY_NAME["messages"], {"messages": items})
        assert example.messages == [{"role": role, "content": "hi"}, ASSISTANT]


def test_unknown_columns_are_named_with_all_that_would_be_read() -> None:
    with pytest.raises(RowError, match="has the columns body, title; expected messages; or conversations") as caught:
        recognise(["body", "title"])
    assert all(column in str(caught.value) for form in FORMATS for column in form.required)
    said = r"expected question and answer \(format: question_answer\). .* data.columns .*, as {question: text}"
    must_refuse(RowError, said, recognise, ["text"], wanted="question_answer")
    examples = {
        ("q", "a", "id"): "{prompt: q, completion: a}",
        ("id", "body"): "{text: body}",
        ("problem", "level", "solution"): "{prompt: problem, completion: solution}",
        ("instruction", "context", "response", "category"): "{input: context, output: response}",
    }
    for columns, example in examples.items():
        said = f"Say in data.columns what its columns are, as {example}"
        assert said_by(RowError, recognise, columns).endswith(said)
    said = said_by(RowError, recognise, ["q", "a", "id"], renames={"prompt": "q", "completion": "b"})
    assert said.startswith("has the columns q, a, id; expected messages; or ")
    assert said.endswith(". data.columns names b, which it does not have")
    assert recognise(["q", "a"], renames={"prompt": "q", "completion": "a"}).name == "prompt_completion"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("messages", {"messages": "hi"}, "messages is 'hi'; expected a list of messages"),
        ("messages", {"messages": []}, "messages is empty"),
        ("messages", {"messages": ["hi"]}, r"messages\[0\] is 'hi'; expected an object with role and content"),
        ("messages", {"messages": [{"role": "user"}]}, "has the keys role; expected role and content"),
        ("messages", {"messages": [{**USER, "role": "robot"}]}, r"messages\[0\].role is 'robot'; expected system"),
        ("messages", {"messages": [{"role": 3, "content": "x"}]}, r"messages\[0\].role is 3"),
        ("messages", {"messages": [USER, {"role": "assistant", "content": 4}]}, r"\[1\].content is 4; expected text"),
        ("messages", {"messages": [USER, {"role": "assistant", "content": " "}]}, r"\[1\].content is empty"),
        ("messages", {"messages": [{**USER, "weight": 1}]}, r"messages\[0\] \(user\) is marked as trained; only what"),
        ("messages", {"messages": [USER, {**ASSISTANT, "weight": 0.5}]}, r"\[1\].weight is 0.5; expected 1 or true"),
        ("messages", {"messages": [USER, {**ASSISTANT, "train": "no"}]}, r"\[1\].train is 'no'; expected 1 or true"),
        ("messages", {"messages": [{**ASSISTANT, "loss_mask": [0, 1]}]}, r"\[0\].loss_mask is a list; expected 1 or"),
        ("messages", {"messages": [{**ASSISTANT, "weight": 1, "train": False}]}, r"weight and train say different"),
        ("messages", {"messages": [{**ASSISTANT, "train_detail": [{}]}]}, r"\[0\].train_detail is not read: a turn is"),
        ("messages", {"messages": [{**ASSISTANT, "training_detail": [{}]}]}, "training_detail is not read"),
        ("prompt_completion", {"prompt": [{**ASSISTANT, "train": True}], "completion": [ASSISTANT]}, "of a prompt:"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "parts that are not text"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "x"}]}]},
            r"\[0\].content holds a part of type image_url; models are trained on text alone by this version",
        ),
        ("question_answer", {"question": "x", "answer": "y", "images": ["a.png"]}, "something in its column images"),
        ("messages", {"messages": [USER, ASSISTANT], "tools": "f"}, "tools is 'f'; expected a list of objects"),
        ("messages", {"messages": [USER, {**ASSISTANT, "tool_calls": "x"}]}, r"tool_calls is 'x'; expected a list of"),
        ("messages", {"messages": [USER, {**ASSISTANT, "tool_calls": [{}]}]}, r"tool_calls\[0\] is an object; expec"),
        ("messages", {"messages": [USER, {**ASSISTANT, "content": "", "tool_calls": []}]}, "content is empty"),
        ("messages", {"messages": [USER, {"role": "assistant", "reasoning_content": "x"}]}, "expected role and "),
        ("prompt_completion", {"prompt": "x", "completion": "y", "tools": [{"name": "f"}]}, "tools has no meaning"),
        ("conversations", {"conversations": [{"from": "narrator", "value": "x"}]}, "from is 'narrator'; expected sys"),
        ("question_answer", {"question": None, "answer": "x"}, "question is null; expected text"),
        ("question_answer", {"question": "x", "answer": ""}, "answer is empty; expected text to train on"),
        ("question_answer", {"question": "x"}, "has the columns question; expected question and answer, as this "),
        ("instruction", {"instruction": "x", "output": ["y"]}, "output is a list; expected text"),
        ("instruction", {"instruction": "x", "output": "y", "input": 3}, "input is 3; expected text"),
        ("prompt_completion", {"prompt": "x", "completion": {}}, "completion is an object; expected text"),
        ("prompt_completion", {"prompt": [USER], "completion": 3}, "completion is 3; expected a list of messages"),
        ("text", {"text": 3.5}, "text is 3.5; expected text"),
        ("text", {"text": True}, "text is true or false; expected text"),
    ],
)
def test_a_row_that_holds_something_else_is_refused_in_a_sentence(name: str, row: dict[str, Any], message: str) -> None:
    must_refuse(RowError, message, read_row, BY_NAME[name], row)
