#!/usr/bin/env bash
# torchtune writes the end token over the last token of an answer that is too long, and trains it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torchao==0.15.0 torchtune==0.6.1 \
  datasets==5.2.0 numpy==2.4.6 sentencepiece==0.2.3 omegaconf==2.4.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""torchtune 0.6.1: a row longer than `max_seq_len` is cut, and the tokenizers of Llama 2, Mistral and
Gemma put the end token in place of the last one that is left. The mask takes it for a word of the
answer. So a model is trained to stop in the middle of a sentence, once for each long row, where a
row that is merely cut would train the words before the cut alone. The tokenizer of Llama 3 does so:
it masks the end token that it writes.
"""

import base64
import pathlib
from importlib.metadata import version

import sentencepiece
from torchtune.data import Message
from torchtune.models.gemma import gemma_tokenizer
from torchtune.models.llama2 import llama2_tokenizer
from torchtune.models.llama3 import llama3_tokenizer
from torchtune.models.mistral import mistral_tokenizer

text = "the answer is that a model learns what rows say\n"
pathlib.Path("text.txt").write_text(text * 99)
sentencepiece.SentencePieceTrainer.train(input="text.txt", model_prefix="small", vocab_size=22, pad_id=3, minloglevel=2)
letters = "".join(f"{base64.b64encode(bytes([value])).decode()} {value}\n" for value in range(256))
pathlib.Path("letters.tiktoken").write_text(letters)
answer = Message(role="assistant", content="is that a model learns what rows say", masked=False)
row = [Message(role="user", content="the answer", masked=True), answer]
print(f"torchtune {version('torchtune')}, what is trained of a row, and how many end tokens:")
for kind, file, limit, ends in (
    (llama2_tokenizer, "small.model", None, 1),
    (llama2_tokenizer, "small.model", 32, 1),
    (mistral_tokenizer, "small.model", 32, 1),
    (gemma_tokenizer, "small.model", 32, 1),
    (llama3_tokenizer, "letters.tiktoken", 64, 0),
):
    tokenizer = kind(file, max_seq_len=limit)
    tokens, masked = tokenizer.tokenize_messages(row)
    trained = [token for token, hidden in zip(tokens, masked, strict=True) if not hidden]
    words = tokenizer.decode([token for token in trained if token != tokenizer.eos_id])
    print(f"  {kind.__name__} of {file}, at most {limit}: {words!r}, {trained.count(tokenizer.eos_id)}")
    assert trained.count(tokenizer.eos_id) == ends and words.endswith("say") == (limit is None)
    assert tokens[-1] == tokenizer.eos_id and len(tokens) == (limit or len(tokens))
PYTHON
