#!/usr/bin/env bash
# tokenizers opens a SentencePiece model without the options it was trained with, and gives its texts other tokens.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cd "$folder"
cp "$folder"/venv/lib/python3*/site-packages/sentencepiece/sentencepiece_model_pb2.py .
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tokenizers 0.23.3: SentencePieceUnigramTokenizer.from_spm takes the pieces and the table of characters from a file of SentencePiece and lays the
rest down itself. It adds a space at the start where the model does not (add_dummy_prefix=False), or where it adds one at the end
(treat_whitespace_as_suffix); takes repeated spaces for one where the model keeps them (remove_extra_whitespaces=False), so that
code loses its indents; and keeps a space at the end where the model drops it. Of such models every text has other tokens; nothing is said.
"""

import io
from importlib.metadata import version

import sentencepiece
from tokenizers.implementations import SentencePieceUnigramTokenizer

print(f"tokenizers {version('tokenizers')}, sentencepiece {version('sentencepiece')}:")
for options, text in (
    ({}, "the fox"),
    ({}, "the fox "),
    ({"add_dummy_prefix": False}, "the fox"),
    ({"treat_whitespace_as_suffix": True}, "the fox"),
    ({"remove_extra_whitespaces": False}, "the fox"),
    ({"remove_extra_whitespaces": False}, "the   fox"),
):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the fox  over the dog"] * 50),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    with open("trained.model", "wb") as file:
        file.write(model.getvalue())
    right = sentencepiece.SentencePieceProcessor(model_file="trained.model").encode(text, out_type=str)
    found = SentencePieceUnigramTokenizer.from_spm("trained.model").encode(text).tokens
    print(f"  {options}, {text!r}: tokenizers {found}, sentencepiece {right}")
    assert (found == right) == (text == "the fox" and set(options) <= {"remove_extra_whitespaces"})
PYTHON
