"""Which token ends what is trained, counted over all train rows; and the cause where none does."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.conftest import CHATML
from tests.unit.data.helpers import prepared, write_jsonl

U, A = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
CHAT = {"messages": [U, A, U, A]}

WITH_NEWLINE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{{ '\n' }}{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}"
)
MARK_OUTSIDE = WITH_NEWLINE.replace(
    "<|im_end|>{{ '\n' }}{% endgeneration %}", "{% endgeneration %}<|im_end|>{{ '\n' }}"
)
ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n### Response:\n"
    "{% else %}{{ m.content }}\n\n{% endif %}{% endfor %}"
)
NO_SUCH_TOKEN = CHATML.replace("<|im_end|>", "<|done|>")


def ends_of(folder: Path, model: Path, rows: list[dict[str, Any]], *, template: str | None = None, **data: Any) -> Any:
    path = write_jsonl(folder / "rows.jsonl", rows)
    if template is not None:
        (folder / "template.jinja").write_text(template)
        data["chat_template"] = str(folder / "template.jinja")
    return prepared(folder / "run", model=model, data={"path": str(path), **data})["ends"]


def end(ident: int, text: str, count: int) -> dict[str, Any]:
    return {"id": ident, "text": text, "count": count}


@pytest.mark.parametrize(
    ("rows", "template", "data", "tokens"),
    [
        ([CHAT], None, {}, [end(4, "<|im_end|>", 2)]),
        ([CHAT], WITH_NEWLINE, {}, [end(4, "<|im_end|>", 2)]),
        ([CHAT], None, {"train_on": "all"}, [end(4, "<|im_end|>", 1)]),
        ([CHAT], None, {"train_on": "completion"}, [end(4, "<|im_end|>", 1)]),
        ([{"text": "the cat"}] * 3, None, {}, [end(1, "</s>", 3)]),
    ],
)
def test_the_token_that_ends_each_trained_span_is_counted(
    tmp_path, chat_model, capsys, rows, template, data, tokens
) -> None:
    found = ends_of(tmp_path, chat_model, rows, template=template, **data)
    assert found == {"tokens": tokens, "unmarked": 0, "cause": None}
    assert "special token" not in capsys.readouterr().err


def test_rows_set_aside_and_ends_that_truncation_cut_are_not_counted(tmp_path, chat_model) -> None:
    long = {"messages": [U, {"role": "assistant", "content": "the cat sat on the mat " * 20}]}
    rows = [CHAT, CHAT, long]
    found = ends_of(tmp_path, chat_model, rows, over_long="truncate", max_length=80)
    assert found == {"tokens": [end(4, "<|im_end|>", 4)], "unmarked": 0, "cause": None}
    found = ends_of(tmp_path, chat_model, [CHAT] * 4, eval_fraction=0.5)
    assert found["tokens"] == [end(4, "<|im_end|>", 4)]


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        (MARK_OUTSIDE, r"<|im_end|> stands behind it, outside the {% generation %} block; move it into the block"),
        (ALPACA, "the chat template writes none behind an answer; name one that does in data.chat_template"),
        (NO_SUCH_TOKEN, "the model's tokenizer has no token <|done|> and writes it in letters; name a template that "),
    ],
)
def test_where_no_answer_ends_in_a_special_token_one_sentence_names_the_cause(
    tmp_path, chat_model, capsys, template, cause
) -> None:
    found = ends_of(tmp_path, chat_model, [CHAT] * 3, template=template)
    sentence = f"no trained answer ends in a special token, so the model will not learn to stop: {cause}"
    assert (found["tokens"], found["unmarked"]) == ([], 6)
    assert found["cause"].startswith(sentence)
    assert capsys.readouterr().err.count(f"warning: {found['cause']}\n") == 1
    assert json.loads((tmp_path / "run" / "data.json").read_text())["ends"] == found


def test_a_closing_tag_behind_which_a_turn_may_go_on_is_no_end(tmp_path, chat_model, capsys) -> None:
    """A model that stopped at `</tool_call>` would call one function where it was taught to call two."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(tokenizer)}))
    rows = [{"messages": [U, {"role": "assistant", "content": "<tool_call>look</tool_call>"}]}] * 3
    found = ends_of(
        tmp_path,
        tmp_path / "model",
        rows,
        template=ALPACA.replace("{{ m.content }}\n\n{% endif", "{{ m.content }}{% endif"),
    )
    assert (found["tokens"], found["unmarked"]) == ([], 3)
    assert "the chat template writes none behind an answer" in capsys.readouterr().err
