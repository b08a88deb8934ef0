#!/usr/bin/env bash
# tokie strips accents where a tokenizer writes small letters, keeps them where it strips, and leaves out NFKC.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokie==0.1.4 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tokie 0.1.4, which reads files of tokenizers: Lowercase also takes the accents off all letters, as BERT's normaliser does; NFD with
StripAccents, which is to do that, leaves them; NFKC, by which wide letters are narrow ones, does nothing; nor does Replace with a
pattern. Texts without these come out alike, and nothing is said as the file is loaded.
"""

from importlib.metadata import version

import tokie
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

cases = (
    ("Lowercase", normalizers.Lowercase(), "Café", "cafe"),
    ("NFD, StripAccents", normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "café", "café"),
    ("NFKC", normalizers.NFKC(), "ＡＢ", "ＡＢ"),
    ("Replace", normalizers.Replace(Regex(" {2,}"), " "), "a   b", "a   b"),
    ("NFC", normalizers.NFC(), "café", "café"),
)
print(f"tokie {version('tokie')}, tokenizers {version('tokenizers')}:")
for name, normalizer, text, read in cases:
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    theirs.train_from_iterator(["the quick brown fox"], trainer)
    theirs.save("tokenizer.json")
    ours = tokie.Tokenizer.from_json("tokenizer.json")
    for given in (text, "a fox"):
        ids = ours.encode(given).ids
        found, right = theirs.decode(ids), theirs.decode(theirs.encode(given).ids)
        print(f"  {name}: {given!r} is {found!r}, in tokenizers {right!r}")
        assert found == (read if given == text else given) and right == normalizer.normalize_str(given)
        assert (found == right) == (given == "a fox" or name == "NFC")
PYTHON
