#!/usr/bin/env bash
# A word with an accent that is added to a byte-level tokenizer comes back broken.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tokenizers 0.23.3: the ByteLevel decoder takes the characters of a token for names of bytes,
also those of a word that was added, which never went through bytes. A word with a character that
names no byte, as 日, stays as it is; the letters up to U+0143 name one each, and come out as broken
bytes: a model that answers with the added word café answers caf and a replacement character.
Encoding finds the word as it is, and the same word comes back where it is not added.
"""

from tokenizers import Tokenizer, __version__, decoders, models, pre_tokenizers, trainers

print(f"tokenizers {__version__}:")
for word, decoded in (
    ("café", "caf\ufffd"),
    ("naïve", "na\ufffdve"),
    ("München", "M\ufffdnchen"),
    ("główny", "g\ufffd\ufffdwny"),
    ("łódź", "łódź"),
    ("cafe", "cafe"),
    ("日本", "日本"),
):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["a b"], trainer)
    text = f"the {word} is"
    before = tokenizer.decode(tokenizer.encode(text).ids)
    tokenizer.add_tokens([word])
    encoded = tokenizer.encode(text)
    after = tokenizer.decode(encoded.ids)
    print(f"  {text!r} is {before!r}, and with {word!r} added {after!r}")
    assert word in encoded.tokens
    assert before == text and after == f"the {decoded} is"
PYTHON
