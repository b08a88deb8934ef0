"""Marks that rows carry already are written once, and what was put into a template before is taken as it is."""

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
from tests.unit.data.helpers import prepared, refused, write_jsonl
from tests.unit.data.templates import TEMPLATES
from tests.unit.data.test_masks import rules, shown, talk

INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


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


TURN = "<|im_start|>user\nriver<|im_end|>\n<|im_start|>assistant\n"


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
def test_a_prompt_that_holds_the_templates_marks_is_taken_as_it_is_and_that_is_said(
    beginning: Tokenizer, family: str
) -> None:
    renderer = beginning.renderer(rules(template=TEMPLATES[family]))
    ready = renderer.render(Pair(prompt=READY[family], completion="stone"))
    assert (ready.text, ready.notes) == (f"{READY[family]}stone", (AS_IT_IS,))
    for prompt in ("river", "river: a [word] of <five> letters?\n", "### Instruct me", "what ends in [INST]?"):
        bare = renderer.render(Pair(prompt=prompt, completion="stone"))
        assert bare.notes == ()
        assert bare.text != f"{prompt}stone"
    by_hand = replace(renderer, rendered=False).render(Pair(prompt=READY[family], completion="stone"))
    assert by_hand.notes == ()
    assert by_hand.text.count("river") == 1
    assert by_hand.text != ready.text
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
