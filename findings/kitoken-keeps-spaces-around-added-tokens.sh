#!/usr/bin/env bash
# kitoken and ExecuTorch's tokenizer leave the spaces around added tokens that are to take them along, and cut such tokens out of words.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kitoken==0.11.1 pytorch-tokenizers==1.5.0 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""kitoken 0.11.1 and pytorch-tokenizers 1.5.0: a file of tokenizers says of each added token whether it takes the spaces before it or
behind it (lstrip, rstrip), as those that end the turns of Phi-3 do, and whether it must be a whole word (single_word). Both read the file and pass
over all three: behind such a token stand spaces and line ends that the model never met in training, and an added word is cut out of
longer ones. Where none is set, all three give the same tokens.
"""

from importlib.metadata import version

import kitoken
import pytorch_tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

print(f"kitoken {version('kitoken')}, pytorch-tokenizers {version('pytorch-tokenizers')}, tokenizers {version('tokenizers')}:")
for settings, text in (
    ({}, "fox <|end|>\nfox"),
    ({"rstrip": True}, "fox<|end|>\nfox"),
    ({"lstrip": True}, "fox <|end|>fox"),
    ({"single_word": True}, "foxes<|end|>fox"),
    ({"single_word": True}, "fox <|end|> fox"),
):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox foxes"], trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False, **settings)])
    tokenizer.save("tokenizer.json")
    executorch = pytorch_tokenizers.CppHFTokenizer()
    executorch.load("tokenizer.json")
    right = tokenizer.encode(text).ids
    found = [kitoken.Kitoken.from_tokenizers_file("tokenizer.json").encode(text, True), executorch.encode(text, 0, 0)]
    shown = [[tokenizer.id_to_token(one) for one in ids] for ids in (right, *found)]
    print(f"  {settings}, {text!r}: tokenizers {shown[0]}, kitoken {shown[1]}, ExecuTorch's {shown[2]}")
    assert found[0] == found[1]
    assert (found[0] == right) == (not settings or text == "fox <|end|> fox")
PYTHON
