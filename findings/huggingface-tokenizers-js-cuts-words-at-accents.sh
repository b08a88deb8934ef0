#!/usr/bin/env bash
# The tokenizers of transformers.js cut words at every letter beyond ASCII where a tokenizer splits by white space.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact @huggingface/tokenizers@0.2.0 > npm.log
cat > encode.mjs <<'JAVASCRIPT'
import { readFileSync } from "fs";
import { Tokenizer } from "@huggingface/tokenizers";

const { texts, file } = JSON.parse(readFileSync("asked.json"));
const tokenizer = new Tokenizer(file, {});
process.stdout.write(JSON.stringify(texts.map((text) => tokenizer.encode(text))));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
r"""`Whitespace` of tokenizers 0.23.3, the pre-tokenizer of its quick tour, takes words by `\w`, which has the letters of all
languages. @huggingface/tokenizers 0.2.0, which transformers.js reads tokenizer.json with, takes JavaScript's `\w`, which has
those of ASCII alone, though its README says that `\w` matches as in tokenizers: "Straße" is three words. A model gets
other tokens, more and shorter ones, for text that is not English, and nothing is said. English text has the same in both.
"""

import json
import subprocess

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXTS = ["the old street", "die alte Straße", "un café noir", "où aller"]
trained = Tokenizer(models.BPE(unk_token="<unk>"))
trained.pre_tokenizer = pre_tokenizers.Whitespace()
trained.train_from_iterator(TEXTS * 5, trainers.BpeTrainer(special_tokens=["<unk>"], show_progress=False))
with open("asked.json", "w") as asked:
    json.dump({"texts": TEXTS, "file": json.loads(trained.to_str())}, asked)
found = json.loads(subprocess.run(["node", "encode.mjs"], check=True, capture_output=True, text=True).stdout)
print("tokenizers 0.23.3 and @huggingface/tokenizers 0.2.0:")
for text, got in zip(TEXTS, found, strict=True):
    wanted = trained.encode(text)
    print(f"  {text!r}: {wanted.tokens}, {got['tokens']}")
    assert 0 not in wanted.ids and (got["ids"] == wanted.ids) == text.isascii()
PYTHON
