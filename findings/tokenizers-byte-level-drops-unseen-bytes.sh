#!/usr/bin/env bash
# A byte-level tokenizer drops every byte that its training text did not have.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tokenizers 0.23.3: a BPE with the `ByteLevel` pre-tokenizer and decoder is known to write any
text, as its 256 letters stand for all bytes. `BpeTrainer` puts those it has seen in the vocabulary
alone: other characters are dropped from what is encoded, with no unknown token and no word.
Digits, capitals or a euro sign vanish, and amounts change. `initial_alphabet` mends it.
"""

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = ["the invoice is for 10 euros and 30 cents", "pay within 13 days"] * 20


def trained(**settings):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **settings)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


plain, whole = trained(), trained(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
print(f"tokenizers {tokenizers.__version__}, texts encoded and decoded, without and with initial_alphabet:")
cases = {
    "the invoice is for 10 euros": "the invoice is for 10 euros",
    "the invoice is for 120 euros": "the invoice is for 10 euros",
    "PAY 13€ within 25 days": " 13 within  days",
}
for text, expected in cases.items():
    one, other = (tokenizer.decode(tokenizer.encode(text).ids) for tokenizer in (plain, whole))
    print(f"  {text!r}: {one!r}, {other!r}")
    assert one == expected and other == text
PYTHON
