#!/usr/bin/env bash
# To a tokenizer that SentencePiece trains, 10² is 102, and 1½ is eleven halves.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sentencepiece==0.2.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""sentencepiece 0.2.3: the trainer's rule for normalising text, `nmt_nfkc`, replaces a superscript
or subscript by the digit and a fraction by its parts. 10² becomes 102, 2⁻³ becomes 2−3, x₁₂ x12,
and 1½, one and a half, 11⁄2. What a model reads are other numbers, and decoding does not bring the
characters back, also where `byte_fallback` has a token for each byte. With `identity` the text
stays.
"""

import io
from importlib.metadata import version

import sentencepiece

TEXT = ["the area is 12 and the length is 345 of 67890 in all", "one two three four five six"] * 20


def trained(**settings):
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=file,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        **settings,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())


normal, identical = trained(), trained(normalization_rule_name="identity")
print(f"sentencepiece {version('sentencepiece')}, text as decoded from its tokens:")
for text, read in (
    ("10² cm", "102 cm"),
    ("2⁻³ is", "2−3 is"),
    ("x₁₂ and", "x12 and"),
    ("1½ cups", "11⁄2 cups"),
    ("step ③4", "step 34"),
    ("10^2 cm", "10^2 cm"),
):
    found, other = (model.decode(model.encode(text)) for model in (normal, identical))
    print(f"  {text!r}: {found!r}, with identity {other!r}")
    assert found == read and other == text
    assert normal.encode(text) == normal.encode(read)
PYTHON
