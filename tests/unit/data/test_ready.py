"""Marks that rows carry are written once, prompts taken as they are, and ends counted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from shardwise.data.read.formats import Example, Pair, Text
from shardwise.data.read.messages import RowError
from shardwise.data.workers.ready import AS_IT_IS, ONE_END
from shardwise.data.workers.tokens import Tokenizer, load_tokenizer
from tests.unit.data.conftest import CHATML
from tests.unit.data.helpers import TEMPLATES, prepared, refused, write_jsonl
from tests.unit.data.test_masks import GENERATION, rules, shown, talk

INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TURN = "<|im_start|>user\nriver<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="session", params=["<s> $A", "<s> $A </s>"])
def beginning(request, plain_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that writes BOS by itself, and one that writes EOS too."""
    folder = tmp_path_factory.mktemp("beginning")
    tokenizer = AutoTokenizer.from_pretrained(plain_model)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=request.param, special_tokens=[("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(folder)
    return load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("example", "template", "expected"),
    [
        (Text(text="the cat"), None, "⟦<s>the cat</s>⟧"),
        (Text(text="<s>the cat</s>"), None, "⟦<s>the cat</s>⟧"),
        (Text(text="<s>the cat</s>\n"), None, "⟦<s>the cat</s>\n⟧"),
        (Text(text=f"{TURN}stone<|im_end|>\n"), None, f"⟦<s>{TURN}stone<|im_end|>\n⟧"),
        (Text(text="<s>the <|im_start|>"), None, "⟦<s>the <|im_start|>⟧"),
        (Pair(prompt="<s>two?", completion=" four.</s>"), None, "<s>two?⟦ four.</s>⟧"),
        (Pair(prompt="two?", completion=" four."), None, "<s>two?⟦ four.</s>⟧"),
        (Pair(prompt="<s>[INST]river[/INST]", completion="stone</s>"), INST, "<s>[INST]river[/INST]⟦stone</s>⟧"),
        (Pair(prompt="[INST]river[/INST]", completion="stone"), INST, "<s>[INST]river[/INST]⟦stone</s>⟧"),
        (Pair(prompt="river", completion="stone</s>"), INST, "<s>[INST]river[/INST]⟦stone</s>⟧"),
        (Pair(prompt="what is [INST]?", completion="it"), INST, "<s>[INST]what is [INST]?[/INST]⟦it</s>⟧"),
        (Pair(prompt=TURN, completion="stone<|im_end|>\n"), CHATML, f"<s>{TURN}⟦stone<|im_end|>\n⟧"),
        (Pair(prompt="river", completion="stone<|im_end|>\n"), CHATML, f"{TURN}⟦stone<|im_end|>⟧\n"),
        (talk("river", "stone<|im_end|>"), CHATML, f"{TURN}⟦stone<|im_end|>⟧\n"),
        (talk("<|im_end|> it?", "of <|im_end|> I"), CHATML, None),
    ],
)
def test_no_mark_is_written_twice(beginning: Tokenizer, example: Example, template: str | None, expected: str) -> None:
    if expected is None:
        expected = f"{TURN.replace('river', '<|im_end|> it?')}⟦of <|im_end|> I<|im_end|>⟧\n"
    assert shown(beginning, example, rules(template=template)) == expected


READY = {
    "QWEN25": TURN,
    "QWEN3": "<|im_start|>system\nbe kind<|im_end|>\n" + TURN,
    "LLAMA2": "<s>[INST] <<SYS>>\nbe kind\n<</SYS>>\n\nriver [/INST]",
    "MISTRAL": "[INST] river[/INST]",
    "GEMMA": "<s><|im_start|>user\nriver<|im_end|>\n<|im_start|>model\n",
    "ZEPHYR": "<|system|>\nbe kind</s>\n<|user|>\nriver</s>\n<|assistant|>\n",
    "ALPACA": "Below is a task.\n\n### Instruction:\nriver\n\n### Response:\n",
    "VICUNA": "A talk of two. USER: river ASSISTANT:",
}


@pytest.mark.parametrize("family", READY)
def test_a_prompt_that_holds_the_templates_marks_is_taken_as_it_is_and_that_is_said(beginning, family) -> None:
    renderer = beginning.renderer(rules(template=TEMPLATES[family]))
    ready = renderer.render(Pair(prompt=READY[family], completion="stone"))
    assert (ready.text, ready.notes) == (f"{READY[family]}stone", (AS_IT_IS,))
    for prompt in ("river", "river: a [word] of <five> letters?\n", "### Instruct me", "what ends in [INST]?"):
        bare = renderer.render(Pair(prompt=prompt, completion="stone"))
        assert bare.notes == ()
        assert bare.text != f"{prompt}stone"
    by_hand = replace(renderer, rendered=False).render(Pair(prompt=READY[family], completion="stone"))
    assert by_hand.notes == ()
    assert by_hand.text.count("river") == 1 and by_hand.text != ready.text
    assert replace(renderer, rendered=True).render(Pair(prompt="river ", completion="stone")).text == "river stone"
    with pytest.raises(RowError, match=r"data.rendered: true has no meaning for a chat, which is put into a template"):
        replace(renderer, rendered=True).render(talk("hi", "hello"))


def test_what_is_done_with_marks_is_counted_and_part_of_the_key(tmp_path, chat_model, capsys) -> None:
    rows: list[dict[str, Any]] = [{"prompt": TURN, "completion": "stone"}, {"prompt": "a", "completion": "b<|im_end|>"}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    data_json = prepared(tmp_path / "run", model=chat_model, data={"path": str(path)})
    assert data_json["train"]["sources"][0]["notes"] == {AS_IT_IS: 1, ONE_END: 1}
    assert f"  1 rows: {AS_IT_IS}\n" in capsys.readouterr().err
    other = prepared(tmp_path / "other", model=chat_model, data={"path": str(path), "rendered": False})
    assert other["train"]["sources"][0]["notes"] == {ONE_END: 1}
    assert other["fingerprint"] != data_json["fingerprint"]
    chats = write_jsonl(tmp_path / "chats.jsonl", [{"question": "a", "answer": "b"}])
    error = refused(tmp_path / "third", model=chat_model, data={"path": str(chats), "rendered": True})
    assert str(error).startswith(f"{chats}:1: data.rendered: true has no meaning for a chat")


U, A = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}
CHAT = {"messages": [U, A, U, A]}
LONG = {"messages": [U, {"role": "assistant", "content": "the cat sat on the mat " * 20}]}
WITH_NEWLINE = GENERATION.replace("{% endgeneration %}", "{{ '\n' }}{% endgeneration %}")
MARK_OUTSIDE = GENERATION.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
ALPACA = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n### Response:\n"
    "{% else %}{{ m.content }}\n\n{% endif %}{% endfor %}"
)
NO_SUCH_TOKEN = CHATML.replace("<|im_end|>", "<|done|>")


def ends_of(folder: Path, model: Path, rows: list[dict[str, Any]], *, template: str = CHATML, **data: Any) -> Any:
    (folder / "template.jinja").write_text(template)
    spec = {"path": str(write_jsonl(folder / "rows.jsonl", rows)), "chat_template": str(folder / "template.jinja")}
    return prepared(folder / "run", model=model, data={**spec, **data})["ends"]


def end(ident: int, text: str, count: int) -> dict[str, Any]:
    return {"id": ident, "text": text, "count": count}


@pytest.mark.parametrize(
    ("rows", "options", "tokens"),
    [
        ([CHAT], {}, [end(4, "<|im_end|>", 2)]),
        ([CHAT], {"template": WITH_NEWLINE}, [end(4, "<|im_end|>", 2)]),
        ([CHAT], {"train_on": "all"}, [end(4, "<|im_end|>", 1)]),
        ([CHAT], {"train_on": "completion"}, [end(4, "<|im_end|>", 1)]),
        ([{"text": "the cat"}] * 3, {}, [end(1, "</s>", 3)]),
        ([CHAT, CHAT, LONG], {"over_long": "truncate", "max_length": 80}, [end(4, "<|im_end|>", 4)]),
        ([CHAT] * 4, {"eval_fraction": 0.5}, [end(4, "<|im_end|>", 4)]),
    ],
)
def test_the_token_that_ends_each_trained_span_is_counted(tmp_path, chat_model, capsys, rows, options, tokens) -> None:
    """But for rows that are set aside, and ends that truncation cut off."""
    assert ends_of(tmp_path, chat_model, rows, **options) == {"tokens": tokens, "unmarked": 0, "cause": None}
    assert "special token" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        (MARK_OUTSIDE, r"<|im_end|> stands behind it, outside the {% generation %} block; move it into the block"),
        (ALPACA, "the chat template writes none behind an answer; name one that does in data.chat_template"),
        (NO_SUCH_TOKEN, "the model's tokenizer has no token <|done|> and writes it in letters; name a template that "),
    ],
)
def test_where_no_answer_ends_in_a_special_token_the_cause_is_named(tmp_path, chat_model, capsys, template, cause):
    found = ends_of(tmp_path, chat_model, [CHAT] * 3, template=template)
    sentence = f"no trained answer ends in a special token, so the model will not learn to stop: {cause}"
    assert (found["tokens"], found["unmarked"]) == ([], 6)
    assert found["cause"].startswith(sentence)
    assert capsys.readouterr().err.count(f"warning: {found['cause']}\n") == 1
    assert json.loads((tmp_path / "run" / "data.json").read_text())["ends"] == found


def test_a_closing_tag_behind_which_a_turn_may_go_on_is_no_end(tmp_path, chat_model, capsys) -> None:
    """A model that stopped at `</tool_call>` would call one function where it was taught two."""
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(tokenizer)}))
    rows = [{"messages": [U, {"role": "assistant", "content": "<tool_call>look</tool_call>"}]}] * 3
    bare = ALPACA.replace("{{ m.content }}\n\n{% endif", "{{ m.content }}{% endif")
    found = ends_of(tmp_path, tmp_path / "model", rows, template=bare)
    assert (found["tokens"], found["unmarked"]) == ([], 3)
    assert "the chat template writes none behind an answer" in capsys.readouterr().err
