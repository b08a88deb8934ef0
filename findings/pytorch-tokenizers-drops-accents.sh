#!/usr/bin/env bash
# ExecuTorch's tokenizer takes the accents off the letters where a tokenizer normalises by NFC, as Qwen's do.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pytorch-tokenizers==1.5.0 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pytorch-tokenizers 1.5.0, the tokenizers that ExecuTorch runs models with: NFC is to leave a letter with its accent as one letter. Given
as one letter, it comes out as the bare one: é is e, ü is u, й is и, Korean syllables are their first sounds, and the model
answers another text. Given as a letter and an accent it comes out as one letter, as it should. Without a normaliser both are kept.
"""

from importlib.metadata import version

import pytorch_tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

print(f"pytorch-tokenizers {version('pytorch-tokenizers')}, tokenizers {version('tokenizers')}:")
for name, normalizer in (("NFC", normalizers.NFC()), ("none", None)):
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    if normalizer:
        theirs.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    theirs.train_from_iterator(["the quick brown fox"], trainer)
    theirs.save("tokenizer.json")
    ours = pytorch_tokenizers.CppHFTokenizer()
    ours.load("tokenizer.json")
    for text, read in (("à la carte", "a la carte"), ("über", "uber"), ("йод", "иод"), ("각", "\u1100"), ("e\u0301", "é")):
        found = theirs.decode(ours.encode(text, 0, 0))
        print(f"  normaliser {name}: {text!r} is {found!r}, in tokenizers {theirs.decode(theirs.encode(text).ids)!r}")
        assert found == (read if normalizer else text)
        assert theirs.decode(theirs.encode(text).ids) == (normalizer.normalize_str(text) if normalizer else text)
PYTHON
