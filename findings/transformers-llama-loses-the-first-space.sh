#!/usr/bin/env bash
# LlamaTokenizer gives "x" and " x" the same tokens, where SentencePiece tells them apart.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""SentencePiece puts a space before any text, so that a first word is one like others; Llama 2 is trained so, and tokenizer.json
of its time says so. LlamaTokenizer of transformers 5.23.0 puts it only where none is: of text that begins with spaces, as
indented code does, one is lost, decoding does not bring it back, and nothing is said. Other text has SentencePiece's ids.
"""

import json
from importlib.metadata import version
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer

Path("text").write_text("def f(x):\n    return x\nthe quick brown fox\n" * 30)
Path("model").mkdir()
# As Llama 2's: nothing is normalised, and no space is removed.
sentencepiece.SentencePieceTrainer.train(
    input="text",
    model_prefix="model/tokenizer",
    vocab_size=310,
    model_type="bpe",
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    minloglevel=2,
)
named = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
Path("model/tokenizer_config.json").write_text(json.dumps(named))
reference = sentencepiece.SentencePieceProcessor(model_file="model/tokenizer.model")
tokenizer = AutoTokenizer.from_pretrained("model")


def both(text):
    return reference.encode(text), tokenizer(text, add_special_tokens=False)["input_ids"]


print(f"sentencepiece {version('sentencepiece')} and transformers {version('transformers')} ({type(tokenizer).__name__}):")
for text in ("x", "the  fox", " x", "    return x"):
    wanted, got = both(text)
    print(f"  {text!r}: {reference.id_to_piece(wanted)}, {reference.id_to_piece(got)}, back {tokenizer.decode(got)!r}")
    assert reference.decode(wanted) == text
    assert (got == wanted) == (tokenizer.decode(got) == text) == (not text.startswith(" "))
assert both("x")[1] == both(" x")[1] and both("x")[0] != both(" x")[0]
PYTHON
