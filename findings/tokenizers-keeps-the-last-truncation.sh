#!/usr/bin/env bash
# A tokenizer that was saved after a call with truncation cuts texts wherever tokenizers alone opens it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: `tokenizer(text, truncation=True, max_length=8)` sets the truncation of the tokenizer itself,
and `save_pretrained` after it writes that into tokenizer.json. transformers switches it off again for a call without
truncation; programs that open tokenizer.json with the tokenizers library get 8 tokens of every text, without a word.
"""

import tokenizers
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

words = {"[UNK]": 0, **{f"w{n}": n + 1 for n in range(30)}}
inner = Tokenizer(WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = Whitespace()
tokenizer, text = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]"), " ".join(list(words)[1:])
tokenizer.save_pretrained("before")
tokenizer(text, truncation=True, max_length=8)
tokenizer.save_pretrained("after")
counts = {name: len(Tokenizer.from_file(f"{name}/tokenizer.json").encode(text).ids) for name in ("before", "after")}
theirs = len(PreTrainedTokenizerFast.from_pretrained("after")(text).input_ids)
print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}: {counts}; transformers: {theirs}")
assert counts == {"before": 30, "after": 8} and theirs == 30
PYTHON
