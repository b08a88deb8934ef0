#!/usr/bin/env bash
# ExecuTorch's tokenizer drops all text that a pattern of a tokenizer does not match: of DeepSeek's rules, all but numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pytorch-tokenizers==1.5.0 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pytorch-tokenizers 1.5.0, the tokenizers that ExecuTorch runs models with: a step "Split" with "Isolated" cuts a text at what its pattern
matches and keeps what lies between as pieces of their own. Here what lies between is gone. Where the pattern matches every text, as
those of GPT and Qwen do, that makes no difference. DeepSeek's tokenizers split off numbers first: of "the fox has 12345 tails" the model
is given 12345, and of a text without a number nothing. Nothing is said as the file is loaded.
"""

from importlib.metadata import version

import pytorch_tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

patterns = {"every text": r"\p{N}{1,3}| ?\p{L}+|.", "numbers": r"\p{N}{1,3}", "letters": r"\p{L}+"}
print(f"pytorch-tokenizers {version('pytorch-tokenizers')}, tokenizers {version('tokenizers')}:")
for name, pattern in patterns.items():
    theirs = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), last])
    theirs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    theirs.train_from_iterator(["the quick brown fox 1234"], trainer)
    theirs.save("tokenizer.json")
    ours = pytorch_tokenizers.CppHFTokenizer()
    ours.load("tokenizer.json")
    for text, numbers, letters in (("the fox has 12345 tails", "12345", "thefoxhastails"), ("a fox.", "", "afox")):
        found = theirs.decode(ours.encode(text, 0, 0))
        print(f"  a pattern of {name}: of {text!r} is left {found!r}")
        assert found == {"numbers": numbers, "letters": letters, "every text": text}[name]
        assert theirs.decode(theirs.encode(text).ids) == text
PYTHON
