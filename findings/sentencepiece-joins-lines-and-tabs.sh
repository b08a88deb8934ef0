#!/usr/bin/env bash
# A tokenizer that SentencePiece trains reads code as one line: line ends are spaces to it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sentencepiece==0.2.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""sentencepiece 0.2.3: by the rule of the trainer, `nmt_nfkc`, a line end and a tab are spaces,
and spaces that follow each other are one. Python code, tables and lists come out as one line
without indentation, though `byte_fallback` has a token for each byte, 0x0A too. Without
`remove_extra_whitespaces` the indentation stays, and the line ends are still gone; it takes
`identity` as well.
"""

import io
from importlib.metadata import version

import sentencepiece

TEXT = ["if x: return y else: return 12 + 345 for i in range ( 67890 )", "one two three four five six"] * 20


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


CODE = "if x:\n    return y\nelse:\n\treturn  1"
print(f"sentencepiece {version('sentencepiece')}, {CODE!r} as decoded from its tokens:")
for settings, read in (
    ({}, "if x: return y else: return 1"),
    ({"remove_extra_whitespaces": False}, "if x:     return y else:  return  1"),
    ({"normalization_rule_name": "identity"}, "if x:\n return y\nelse:\n\treturn 1"),
    ({"normalization_rule_name": "identity", "remove_extra_whitespaces": False}, CODE),
):
    model = trained(**settings)
    found = model.decode(model.encode(CODE))
    print(f"  {settings}: {found!r}")
    assert found == read
    assert model.piece_to_id("<0x0A>") != model.unk_id()
PYTHON
