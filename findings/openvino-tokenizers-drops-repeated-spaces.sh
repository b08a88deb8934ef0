#!/usr/bin/env bash
# OpenVINO's copy of a SentencePiece-like BPE tokenizer drops spaces that follow each other.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3 openvino==2026.4.1 openvino-tokenizers==2026.4.1.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""openvino-tokenizers 2026.4.1.0: `convert_tokenizer` of a `SentencePieceBPETokenizer` of the tokenizers library, which puts
a "▁" for each space and splits there. Where several spaces follow each other, the copy gives the last one alone: code loses
its indentation and other text is cut short, without a word. Text with single spaces has the ids of transformers.
"""

from importlib.metadata import version

import openvino
from openvino_tokenizers import convert_tokenizer
from tokenizers import SentencePieceBPETokenizer
from transformers import PreTrainedTokenizerFast

CODE = "def f(x):\n    if x:\n        return x\n"
trained = SentencePieceBPETokenizer()
trained.train_from_iterator([CODE, "the quick brown fox"] * 20, vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
copy = openvino.compile_model(convert_tokenizer(tokenizer), "CPU")

print(f"transformers {version('transformers')} and openvino-tokenizers {version('openvino-tokenizers')}:")
for text in ("the quick brown fox", "the  quick", CODE):
    wanted, got = tokenizer(text)["input_ids"], copy([text])["input_ids"][0].tolist()
    print(f"  of {text!r}:\n    {tokenizer.convert_ids_to_tokens(wanted)}\n    {tokenizer.convert_ids_to_tokens(got)}")
    assert tokenizer.decode(wanted) == text
    assert (got == wanted) == ("  " not in text)
assert tokenizer.decode(got) == "def f(x):\n if x:\n return x\n"
PYTHON
