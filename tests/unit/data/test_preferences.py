"""Rows of preferences become pairs of token rows, or labelled ones, as TRL reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from shardwise.data.digests import samples_seen
from shardwise.data.micro_batches import Batcher
from shardwise.data.read.formats import formats_of, read_row, recognise
from shardwise.data.read.messages import RowError
from shardwise.data.store import IGNORED, PreparedData
from shardwise.data.workers.tokens import Rules, load_tokenizer
from shardwise.errors import DataError
from tests.refusals import must_refuse
from tests.unit.data import helpers
from tests.unit.data.helpers import write_jsonl


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


CHAT = {"prompt": [user("the cat?")], "chosen": [says("the mat")], "rejected": [says("the dog sat on the log")]}
#: The same, the prompt in both sides.
BOTH_WHOLE = {side: [*CHAT["prompt"], *CHAT[side]] for side in ("chosen", "rejected")}
TEXT = {"prompt": "the cat sat", "chosen": " on the mat", "rejected": " on the log and"}


def prepared(tmp_path: Path, model: Path, rows: list[Any], *, objective: str = "dpo", **data: Any) -> PreparedData:
    spec = {"path": str(write_jsonl(tmp_path / "rows.jsonl", rows)), "max_length": 64, **data}
    found = helpers.prepared(tmp_path / "run", model=model, data=spec, objective=objective, workers=None)
    return PreparedData.open(found["train"]["folder"])


@pytest.mark.parametrize("row", [CHAT, BOTH_WHOLE])
def test_a_chat_is_what_transformers_renders_and_all_behind_the_prompt_counts(row, chat_model, tmp_path) -> None:
    """With an explicit prompt, and with one that both sides begin with."""
    rows, tokenizer = prepared(tmp_path, chat_model, [row]).rows(0), AutoTokenizer.from_pretrained(chat_model)
    given: dict[str, Any] = {"tokenize": True, "return_dict": False}
    prompt = tokenizer.apply_chat_template(CHAT["prompt"], add_generation_prompt=True, **given)
    assert len(rows) == 2
    for side, (ids, positions, labels) in zip(("chosen", "rejected"), rows, strict=True):
        whole = tokenizer.apply_chat_template(CHAT["prompt"] + CHAT[side], **given)
        assert ids.tolist() == whole
        assert positions.tolist() == [*range(len(whole))]
        trained = labels[:-1] != IGNORED
        assert (labels[:-1][trained] == ids[1:][trained]).all()
        assert [*np.flatnonzero(trained) + 1] == [*range(len(prompt), len(whole))]


@pytest.mark.parametrize("model", ["plain_model", "chat_model"])
def test_text_is_taken_as_it_is_with_an_end(model, request, tmp_path) -> None:
    """A tokenizer's template is for messages; `rendered: false` puts text there."""
    folder = request.getfixturevalue(model)
    data, tokenizer = prepared(tmp_path, folder, [TEXT, TEXT]), AutoTokenizer.from_pretrained(folder)
    for side, (ids, _, labels) in zip(("chosen", "rejected"), data.rows(1), strict=True):
        assert tokenizer.decode(ids) == f"{TEXT['prompt']}{TEXT[side]}</s>"
        assert tokenizer.decode(labels[labels != IGNORED]) == f"{TEXT[side]}</s>"
    if model == "chat_model":
        chat = prepared(tmp_path, folder, [TEXT], rendered=False)
        assert "<|im_start|>assistant" in tokenizer.decode(chat.rows(0)[0][0])


def test_a_sample_is_a_pair_whose_sides_share_a_prompt_that_ends_before_a_word(plain_model, tmp_path) -> None:
    data = prepared(tmp_path, plain_model, [TEXT] * 5, eval_fraction=0.4)
    rows = {"path": f"{tmp_path}/rows.jsonl"}
    shown = helpers.prepared(tmp_path / "run", model=plain_model, data=rows, objective="dpo")["preview"]
    assert [one["where"][-8:] for one in shown] == ["(chosen)", "ejected)", "(chosen)"]
    sides = [len(ids) for ids, _, _ in data.rows(0)]
    assert (len(data), data.sides, int(data.lengths[0])) == (3, 2, max(sides))
    assert data.tokens_of(np.arange(3)) == 3 * sum(sides)
    assert data.chosen_tokens(np.arange(3), prompts=True) == 3 * (sides[0] - 1)
    row = {side: f"the cat sat{TEXT[side]}" for side in ("chosen", "rejected")}
    example: Any = read_row(formats_of("dpo")[0], row)
    assert (example.chosen.prompt, example.chosen.completion) == ("the cat sat on the", " mat")
    assert example.rejected.completion == " log and"


def test_long_pairs_are_cut_on_both_sides_or_dropped_together(plain_model, tmp_path) -> None:
    long = {"prompt": "the cat", "chosen": " sat", "rejected": " sat" * 40}
    cut = prepared(tmp_path, plain_model, [long, TEXT], over_long="truncate", max_length=12)
    assert [len(ids) for ids, _, _ in cut.rows(0)][1] == 12
    lost = {**long, "prompt": "the cat " * 20}
    assert len(prepared(tmp_path, plain_model, [lost, TEXT], over_long="truncate", max_length=12)) == 1
    assert len(prepared(tmp_path, plain_model, [long, TEXT], over_long="drop", max_length=30)) == 1
    with pytest.raises(DataError, match=r"rejected has \d+ tokens; max_length is 30"):
        prepared(tmp_path, plain_model, [long], max_length=30)


def test_labels_are_kept_and_answers_change_prompts(plain_model, tmp_path) -> None:
    labels = {"cat": "True", "dog": False, "log": "0"}  # CSV has text alone
    rows = [{"prompt": "the", "completion": f" {word}", "label": label} for word, label in labels.items()]
    data, tokenizer = prepared(tmp_path, plain_model, rows, objective="kto"), AutoTokenizer.from_pretrained(plain_model)
    assert data.is_good(np.arange(3)).tolist() == [True, False, False]
    other = data.mismatched(np.array([2, 0]))
    assert [tokenizer.decode(other.sample(n)[0]) for n in range(2)] == ["the cat</s>", "the log</s>"]
    assert other.trained_counts.tolist() == [len(data.sample(n)[0]) - 1 for n in (0, 2)]


@pytest.mark.parametrize(
    ("objective", "row", "sentence"),
    [
        ("dpo", {**CHAT, "chosen": [user("no")]}, r"chosen\[0\] \(user\) begins what is behind the prompt; expected"),
        ("dpo", {**CHAT, "rejected": []}, "rejected is empty; expected at least one message"),
        ("dpo", {"chosen": [says("a")], "rejected": [says("a")]}, "chosen has no message behind the prompt"),
        ("dpo", {**TEXT, "chosen": " "}, "chosen is empty; expected text to train on"),
        ("dpo", {"chosen": "the cat", "rejected": "the cat sat"}, "begin alike, and one of them has nothing more"),
        ("kto", {"prompt": "a", "completion": "b", "label": "yes"}, "label is 'yes'; expected true for a good answer"),
        ("dpo", {**CHAT, "chosen": [{**says("no"), "weight": 0}]}, "message 2 is marked as not trained, and all"),
    ],
)
def test_a_bad_row_is_answered_with_a_sentence(objective, row, sentence, chat_model) -> None:
    rules = Rules(template=None, columns={}, train_on="auto", max_length=9, over_long="error")
    with pytest.raises(RowError, match=sentence):
        load_tokenizer(str(chat_model)).renderer(rules).sides(read_row(formats_of(objective)[0], row))


def test_rows_of_another_objective_or_without_their_prompt_are_refused() -> None:
    must_refuse(RowError, "are learnt from with objective: dpo, orpo or simpo", recognise, tuple(TEXT)[1:])
    with pytest.raises(RowError, match="objective dpo reads preference; change format or objective"):
        recognise(("messages",), wanted="messages", objective="dpo")
    must_refuse(RowError, "expected chosen and rejected", recognise, ("messages",), objective="dpo")
    with pytest.raises(RowError, match="prompt is in no message that chosen and rejected begin with; write it there"):
        read_row(formats_of("dpo")[0], {"prompt": "the dog?", **BOTH_WHOLE})


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_packed_micro_batches_have_the_rows_of_padded_ones_in_less_room(objective, plain_model, tmp_path) -> None:
    """On every rank as many rows; each document is whole, with positions of its own, and known."""
    rows = [
        {"prompt": "the cat", "chosen": " sat" * (1 + n % 7), "rejected": " dog" * (1 + n % 3)}
        if objective == "dpo"
        else {"prompt": "the cat", "completion": " sat" * (1 + n % 7), "label": n % 2 > 0}
        for n in range(11)
    ]
    data = prepared(tmp_path, plain_model, rows, objective=objective, packing=True)
    assert (len(data), data.joined) == (11, True)
    micros = []
    for rank in range(2):
        batcher = Batcher(data=data, micro_batch_size=6, data_rank=rank, data_world_size=2, padding_id=0)
        batch = batcher.split(np.arange(11), num_micro_batches=1, step=0, epoch=1.0)
        assert samples_seen(batch, data) == [sample for sample in batch.micro_batches[0].sample_ids if sample >= 0]
        micros.append(batch.micro_batches[0])
    assert micros[0].input_ids.shape == micros[1].input_ids.shape
    assert len(micros[0].input_ids) < micros[0].num_rows
    for micro in micros:
        for at, sample in enumerate(micro.sample_ids):
            alone, stored = micro.alone(at), [] if sample < 0 else data.rows(sample)
            assert alone.real.sum() == sum(len(ids) for ids, _, _ in stored)
            for side, row in enumerate(stored):
                there = (micro.owners == at * data.sides + side) & micro.real
                found = (micro.input_ids[there], micro.position_ids[there], micro.labels[there])
                assert all(one.tolist() == other.tolist() for one, other in zip(found, row, strict=True))
                assert alone.labels[side][: len(row[0])].tolist() == row[2].tolist()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "the cat?", **BOTH_WHOLE},
        {**CHAT, "prompt": "the cat?"},
        {"prompt": CHAT["prompt"], "chosen": "the mat", "rejected": "the dog sat on the log"},
    ],
)
def test_a_prompt_and_answers_of_which_some_are_text_and_some_messages_are_a_chat(row) -> None:
    """The first is how UltraFeedback has them: the prompt as text, and once more in both sides."""
    form = formats_of("dpo")[0]
    assert read_row(form, row) == read_row(form, CHAT)
