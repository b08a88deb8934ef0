"""Tools and calls of rows, in every spelling, as templates of each family's kind write them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwise.data.read.formats import BY_NAME, Conversation, Pair, read_row
from shardwise.data.read.messages import FILLED, NO_ARGUMENTS, RowError
from shardwise.data.workers.render import Renderer
from shardwise.data.workers.tokens import Rules, load_tokenizer
from tests.unit.data.helpers import prepared, refused, write_jsonl

USER = {"role": "user", "content": "weather?"}
ANSWER = {"role": "assistant", "content": "sunny"}
TEXT = '{"city":"Paris",  "days": 2}'
OBJECT = {"city": "Paris", "days": 2}
WRITTEN = '{"city": "Paris", "days": 2}'
PAIRS = "city=Paris days=2"


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call], **more}


def read(*messages: Any, columnar: bool = False, **columns: Any) -> Conversation:
    return read_row(BY_NAME["messages"], {"messages": list(messages), **columns}, columnar=columnar)


def renderer_of(of_call: str, *, model: Path) -> Renderer:
    each = "{% for call in m.tool_calls %}{{ call.function.name }} " + of_call + "{% endfor %}"
    template = "{% for m in messages %}{{ m.content }}" + each + "{% endfor %}"
    rules = Rules(template=template, columns={}, train_on="all", max_length=99, over_long="error")
    return load_tokenizer(str(model)).renderer(rules)


def prepared_by(template: str, rows: Path, *, model: Path) -> dict[str, Any]:
    """data.json of rows of which a template writes all."""
    (rows.parent / "template.jinja").write_text(template)
    data = {"path": str(rows), "chat_template": str(rows.parent / "template.jinja"), "train_on": "all"}
    return prepared(rows.parent / "run", model=model, data=data)


def told(data: dict[str, Any]) -> str:
    """The first row as data.json shows it."""
    return "".join(piece for piece, _ in data["preview"][0]["text"])


#: How a template writes a call -> what it writes of arguments as text, and as an object.
CALLS = {
    "Qwen2.5, Llama-3.1, Hermes": ("{{ call.function.arguments | tojson }}", WRITTEN, WRITTEN),
    "Qwen3, Kimi": ("{% set a = call.function.arguments %}{{ a if a is string else a | tojson }}", WRITTEN, WRITTEN),
    "DeepSeek": ("{{ call['function']['name'] + '\n' + call['function']['arguments'] + '\n' }}", TEXT, WRITTEN),
    "Functionary": ("{{ call.function.arguments ~ '' }}", TEXT, WRITTEN),
    "plain": ("{{ call.function.arguments }}", TEXT, WRITTEN),
    "filtered": ("{{ call.function.arguments | string | trim }}", TEXT, WRITTEN),
    "Mistral": ("{{ call.function | tojson }}", WRITTEN, WRITTEN),
    "GLM": ("{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }} {% endfor %}", PAIRS, PAIRS),
    "Qwen3-Coder": ("{% for k, v in call.function.arguments | items %}{{ k }}={{ v }} {% endfor %}", PAIRS, PAIRS),
}


@pytest.mark.parametrize("family", CALLS)
def test_arguments_are_an_object_for_templates_that_want_one_and_json_text_for_others(plain_model, family) -> None:
    of_call, *expected = CALLS[family]
    renderer = renderer_of(of_call, model=plain_model)
    for arguments, text in zip((TEXT, OBJECT), expected, strict=True):
        shown = renderer.render(read(USER, calling(arguments), ANSWER)).text
        assert text in shown
        assert '\\"' not in shown, "nothing is encoded twice"
        assert "'city'" not in shown, "nor is it Python's notation"


def test_every_spelling_of_a_call_is_the_same_call_and_a_null_is_the_users_own() -> None:
    function = {"name": "f", "arguments": TEXT}
    for call in ({"function": function}, json.dumps({"function": function}), function, json.dumps(function)):
        for calls in ([call], json.dumps([call])):
            (found,) = read(USER, {"role": "assistant", "content": None, "tool_calls": calls}).messages[1]["tool_calls"]
            assert found.get("function", found) == {"name": "f", "arguments": OBJECT}
    for legacy in (function, json.dumps(function)):
        message = read(USER, {"role": "assistant", "function_call": legacy}).messages[1]
        assert message["function_call"] == {"name": "f", "arguments": OBJECT}
    arguments = {"city": "Paris", "n": None}
    for columnar, spelling in ((False, arguments), (False, json.dumps(arguments)), (True, json.dumps(arguments))):
        example = read(USER, calling(spelling), tools=json.dumps([{"default": None}]), columnar=columnar)
        assert example.messages[1]["tool_calls"][0]["function"]["arguments"] == arguments
        assert example.tools == [{"default": None}]
        assert example.notes == ()


@pytest.mark.parametrize("nothing", ["", None, []])
def test_a_call_without_arguments_is_one_with_an_empty_object_and_that_is_said(nothing: Any) -> None:
    example = read(USER, calling(nothing))
    assert example.messages[1]["tool_calls"][0]["function"]["arguments"] == {}
    assert example.notes == (NO_ARGUMENTS,)
    assert read(USER, calling("{}"), calling({})).notes == ()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [("Paris", "'Paris'"), ('["Paris"]', """'["Paris"]'"""), ('{"city": ', "'{\"city\": '"), (5, "5"), ([1], "a list")],
)
def test_arguments_that_hold_no_object_are_refused_with_message_and_line(tmp_path, plain_model, arguments, shown):
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER, calling(OBJECT), calling(arguments)]}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    error = refused(tmp_path / "run", model=plain_model, data={"path": str(path)})
    said = {problem.where: problem.message for problem in error.problems}
    expected = "expected an object, or the JSON text of one"
    assert said[f"{path}:2"] == f"messages[2].tool_calls[0]: arguments is {shown}; {expected}"
    with pytest.raises(RowError, match=r"messages\[1\].function_call: arguments is "):
        read(USER, {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": arguments}})
    with pytest.raises(RowError, match="the key 'city' stands twice in one object; remove one"):
        read(USER, calling('{"city": "Paris", "city": "Rome"}'))


def test_a_template_that_writes_json_is_kept_and_one_that_refuses_says_so(plain_model) -> None:
    quoted = {"role": "user", "content": str(OBJECT)}
    for of_call, expected in (("{{ arguments | tojson }}", WRITTEN), ("{{ arguments }}", TEXT)):
        renderer = renderer_of(of_call.replace("arguments", "call.function.arguments"), model=plain_model)
        assert renderer.render(read(quoted, calling(TEXT))).text == f"{OBJECT}f {expected}"
    renderer = renderer_of("{{ raise_exception('no calls here') }}", model=plain_model)
    with pytest.raises(RowError, match="the chat template refuses this row: no calls here"):
        renderer.render(read(USER, calling(TEXT)))


CALLED = {"from": "function_call", "value": json.dumps({"name": "f", "arguments": OBJECT})}


@pytest.mark.parametrize("call", ["function_call", "tool_call"])
@pytest.mark.parametrize("answer", ["observation", "function_response", "tool", "Tool_Response", "ipython"])
def test_calls_and_answers_of_tools_in_the_spelling_of_sharegpt_become_those_of_a_chat(call: str, answer: str) -> None:
    several = json.dumps([{"name": "f", "arguments": TEXT}, {"function": {"name": "g", "arguments": {}}}])
    spoken = [{"from": "Human", "value": "weather?"}, {**CALLED, "from": call}, {"from": answer, "value": "sun"}]
    spoken += [{"from": call, "value": several}, {"from": "GPT", "value": "sunny"}]
    example = read_row(BY_NAME["conversations"], {"conversations": spoken, "tools": json.dumps([{"name": "f"}])})
    assert [message["role"] for message in example.messages] == ["user", "assistant", "tool", "assistant", "assistant"]
    assert example.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": OBJECT}}]
    assert [found["function"]["name"] for found in example.messages[3]["tool_calls"]] == ["f", "g"]
    assert example.learns == (False, True, False, True, True)
    for value in ("call f", "[]", 5, None):
        with pytest.raises(RowError, match=r"conversations\[0\].value is .*; expected a call as JSON, {\"name\": "):
            read_row(BY_NAME["conversations"], {"conversations": [{"from": call, "value": value}]})


#: Two rows that are told apart by their keys alone, as objects of a column of one type.
TAKES = [{"name": "f", "parameters": {"properties": {key: {"type": "string"}}}} for key in ("city", "n")]
SCHEMAS = [{"type": "function", "function": function} for function in TAKES]
ROWS = [
    {"messages": [USER, calling({"city": "Paris", "at": {"x": 1, "of": [{"a": 1}, {"b": 2}]}})], "tools": SCHEMAS[:1]},
    {"messages": [USER, calling({"n": 3, "at": {"y": 2, "of": []}})], "tools": SCHEMAS[1:]},
    {"messages": [USER, calling({}), ANSWER], "tools": None},
]


def test_nulls_that_fill_up_a_parquet_file_are_not_in_tools_or_calls_as_is_said_once(tmp_path, plain_model, capsys):
    filled = pa.Table.from_pylist(ROWS)
    assert filled.to_pylist()[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]["city"] is None
    pq.write_table(filled, tmp_path / "rows.parquet")
    for row, value in zip(ROWS, filled.to_pylist(), strict=True):
        example = read_row(BY_NAME["messages"], value, columnar=True)
        assert example.messages[1]["tool_calls"] == row["messages"][1]["tool_calls"]
        assert example.tools == row["tools"]
        assert example.notes == (FILLED,)
    template = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}"
    found = prepared_by(template, tmp_path / "rows.parquet", model=plain_model)
    assert '"city": "Paris", "at"' in told(found)
    assert "null" not in told(found)
    assert found["train"]["sources"][0]["notes"] == {FILLED: 3}
    assert capsys.readouterr().err.count(FILLED) == 1


def test_messages_that_a_column_holds_as_json_text_are_read(tmp_path: Path) -> None:
    messages = [USER, calling(OBJECT), ANSWER]
    for spelling in (json.dumps(messages), [json.dumps(message) for message in messages]):
        example = read_row(BY_NAME["messages"], {"messages": spelling})
        assert example.messages == messages
    pair = {"prompt": json.dumps(messages[:1]), "completion": json.dumps(messages[1:])}
    example = read_row(BY_NAME["prompt_completion"], pair)
    assert example.messages == messages
    for plain in ({**pair, "completion": "sunny"}, {"prompt": "[1, 2]", "completion": "[3]"}):
        assert read_row(BY_NAME["prompt_completion"], plain) == Pair(**plain)
    with pytest.raises(RowError, match=r"messages is \"\[{'role': .*; expected a list of messages"):
        read_row(BY_NAME["messages"], {"messages": str([USER])})


def test_maps_of_a_parquet_file_are_objects(tmp_path: Path, plain_model: Path) -> None:
    arguments = pa.map_(pa.string(), pa.string())
    call = pa.struct([("function", pa.struct([("name", pa.string()), ("arguments", arguments)]))])
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call))])
    rows = [{**USER, "tool_calls": None}, calling([("city", "Paris"), ("n", "3")]), calling([])]
    column = pa.array([rows], pa.list_(message))
    pq.write_table(pa.Table.from_arrays([column], names=["messages"]), tmp_path / "rows.parquet")
    template = "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
    text = told(prepared_by(template, tmp_path / "rows.parquet", model=plain_model))
    assert '"arguments": {"city": "Paris", "n": "3"}' in text
    assert '"arguments": {}' in text
    twice = pa.array([[("a", "1"), ("a", "2")]], arguments)
    pq.write_table(pa.Table.from_arrays([twice], names=["text"]), tmp_path / "twice.parquet")
    error = refused(tmp_path / "other", model=plain_model, data={"path": str(tmp_path / "twice.parquet")})
    assert "text cannot be read: the key 'a' stands twice in one object" in str(error)


def test_marks_and_keys_that_nothing_reads_are_honoured_or_said(tmp_path, chat_model, capsys) -> None:
    unmarked = [USER, ANSWER, USER, ANSWER]
    marked = [{**USER, "timestamp": 3}, {**ANSWER, "train": False, "id": 7}, USER, {**ANSWER, "weight": 1, "id": 8}]
    found = {}
    for name, messages in (("unmarked", unmarked), ("marked", marked)):
        path = write_jsonl(tmp_path / f"{name}.jsonl", [{"messages": messages}, {"messages": unmarked}])
        found[name] = prepared(tmp_path / name, model=chat_model, data={"path": str(path)})["train"]
    assert found["marked"]["num_tokens"] == found["unmarked"]["num_tokens"]
    assert found["marked"]["num_trained_tokens"] * 4 == found["unmarked"]["num_trained_tokens"] * 3
    assert capsys.readouterr().err.count("  keys of messages that are not read: id, timestamp\n") == 1
    rows = [{"messages": unmarked}, {"messages": marked}, {"messages": [USER, {**ANSWER, "training": 0}]}]
    path = write_jsonl(tmp_path / "all.jsonl", rows)
    error = refused(tmp_path / "all", model=chat_model, data={"path": str(path), "train_on": "all"})
    said = "message 2 is marked as not trained, and train_on: all trains everything; use train_on: assistant, or"
    assert [problem.where for problem in error.problems] == [f"{path}:2", f"{path}:3"]
    assert all(problem.message.startswith(said) for problem in error.problems)
    error = refused(tmp_path / "none", model=chat_model, data={"path": str(path)})
    (problem,) = error.problems
    assert (problem.where, "has no trained token" in problem.message) == (f"{path}:3", True)


def test_a_template_that_writes_messages_whole_reads_all_their_keys(tmp_path, chat_model, capsys) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": [{**USER, "mood": "keen"}, ANSWER]}])
    prepared_by("{% for message in messages %}{{ message | tojson }}{% endfor %}", path, model=chat_model)
    assert "not used" not in capsys.readouterr().err
