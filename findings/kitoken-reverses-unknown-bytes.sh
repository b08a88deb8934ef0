#!/usr/bin/env bash
# kitoken gives the bytes of a character that a Unigram vocabulary does not have from the last to the first.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kitoken==0.11.1 sentencepiece==0.2.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""kitoken 0.11.1: a Unigram model of SentencePiece with byte_fallback spells a character that it does not have in its bytes. kitoken
gives these tokens in reversed order, so that Chinese, accents and emoji come back as broken text and the model reads what it never
met in training. A BPE model's are in order, and words of the vocabulary are right in both, as texts in English show.
"""

import io
from importlib.metadata import version

import kitoken
import sentencepiece

print(f"kitoken {version('kitoken')}, sentencepiece {version('sentencepiece')}:")
for kind in ("unigram", "bpe"):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog"] * 50),
        model_writer=model,
        model_type=kind,
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = kitoken.Kitoken.from_sentencepiece(model.getvalue())
    for text in ("the fox", "fox 中文", "é"):
        found, right = ours.encode(text, False), theirs.encode(text)
        print(f"  {kind}, {text!r}: {[theirs.id_to_piece(one) for one in found]}, read back as {theirs.decode(found)!r}")
        assert theirs.decode(right) == text
        assert (found == right) == (kind == "bpe" or text == "the fox")
        assert sorted(found) == sorted(right)
PYTHON
