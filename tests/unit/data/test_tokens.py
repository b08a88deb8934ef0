"""Masks found at the ends of spans alone are those of all offsets, whatever the tokenizer."""

import json
import random
import shutil
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from shardwise.data.workers.render import Rendered
from shardwise.data.workers.tokens import _trained_tokens, byte_widths, mask_by_widths, trained_tokens
from shardwise.data.workers.worker import OTHERWISE
from tests.unit.data.helpers import prepared, write_jsonl

CORPUS = ["the cat sat on the mat and the dog", "é ü 日本語 🙂🙂 tschüß", "  spaces \t\n\n tabs"] * 10
WORDS = ["the", "cat ", " ", "\n", "é", "e\u0301", "🙂", "日本", "<|im_end|>", "  \n\n", "ß", "ﬁ", "\t", "x"]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
STRIPPED = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
KINDS: dict[str, dict[str, Any]] = {
    "bytes": {"pre_tokenizer": BYTES, "decoder": decoders.ByteLevel()},
    "trimmed bytes": {"pre_tokenizer": BYTES, "post_processor": processors.ByteLevel(trim_offsets=True)},
    "NFC bytes": {"pre_tokenizer": BYTES, "decoder": decoders.ByteLevel(), "normalizer": normalizers.NFC()},
    "normalised bytes": {"pre_tokenizer": BYTES, "normalizer": normalizers.NFKC()},
    "pieces": {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
    "words without spaces": {"pre_tokenizer": pre_tokenizers.Whitespace(), "normalizer": STRIPPED},
}


@pytest.mark.parametrize("kind", KINDS)
def test_masks_from_the_ends_of_spans_are_those_from_all_offsets(kind: str) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    for part, value in KINDS[kind].items():
        setattr(tokenizer, part, value)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if "bytes" in kind else []
    options = {"special_tokens": ["<unk>", "<|im_end|>"], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, **options))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    tokenizer, widths, refused = fast.backend_tokenizer, byte_widths(fast), 0
    chance = random.Random(kind)
    for _ in range(500):
        text = "".join(chance.choices(WORDS, k=chance.randint(0, 14)))
        edges = sorted(chance.randint(0, len(text)) for _ in range(2 * chance.randint(1, 3)))
        spans = tuple(zip(edges[::2], edges[1::2], strict=True))
        encoding = tokenizer.encode(text, add_special_tokens=False)
        rendered = Rendered(text=text, spans=spans, special_tokens=False, ends=False)
        expected = trained_tokens(encoding.offsets, spans).tolist()
        assert _trained_tokens(encoding, rendered).tolist() == expected, (text, spans)
        if widths is not None:
            found = mask_by_widths(np.array(encoding.ids, np.int32), widths, text=text, spans=spans)
            assert found is None or found.tolist() == expected, (text, spans)
            refused += found is None
    assert (widths is not None) == (kind in ("bytes", "NFC bytes"))
    assert refused < 250


@pytest.mark.parametrize(("family", "noted"), [("llama", {}), ("qwen2", {OTHERWISE: 2})])
def test_rows_that_transformers_cuts_otherwise_than_tokenizer_json_are_noted(family, noted, tmp_path, plain_model):
    written = Tokenizer.from_file(str(shutil.copytree(plain_model, tmp_path / "model") / "tokenizer.json"))
    written.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "merged_with_next"), BYTES])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    written.train_from_iterator(["1 22 22 a-b"] * 9, trainer)
    written.save(str(tmp_path / "model/tokenizer.json"))
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": family}))
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in ("a", "1 22", "22", "a-b")])
    found = prepared(tmp_path / "run", model=tmp_path / "model", data={"path": str(rows)})
    assert found["train"]["sources"][0]["notes"] == noted
