#!/usr/bin/env bash
# A tokenizer that transformers makes of one of tiktoken gives the special tokens other IDs.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 tiktoken==0.14.0 blobfile==3.3.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.24.0: `convert_tiktoken_to_fast` gets tiktoken's special tokens with their IDs and counts on from the last ordinary token, in the
order that they are named. Where tiktoken leaves a gap, as OpenAI's encodings do, or names them in another order, each is the ID
of another token: the end of a text becomes what the model knows as the start of an infix. Ordinary text is right; nothing is said.
"""

from importlib.metadata import version

import tiktoken
from transformers import PreTrainedTokenizerFast
from transformers.integrations.tiktoken import convert_tiktoken_to_fast

tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"lo", b"hello"]
pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
text = "hello<|endoftext|>hello, hell<|fim|><|end|>"
print(f"transformers {version('transformers')}, tiktoken {version('tiktoken')}, special tokens: tiktoken; transformers")
for special, alike in (
    ({"<|endoftext|>": 261, "<|fim|>": 262, "<|end|>": 263}, True),
    ({"<|endoftext|>": 262, "<|fim|>": 263, "<|end|>": 280}, False),
    ({"<|end|>": 263, "<|fim|>": 262, "<|endoftext|>": 261}, False),
):
    encoding = tiktoken.Encoding(
        "own",
        pat_str=pattern,
        mergeable_ranks={token: number for number, token in enumerate(tokens)},
        special_tokens=special,
    )
    convert_tiktoken_to_fast(encoding, "converted")
    wanted = encoding.encode(text, allowed_special="all")
    got = PreTrainedTokenizerFast.from_pretrained("converted")(text)["input_ids"]
    print(f"  {special}: {wanted}; {got}")
    assert (wanted == got) == alike and len(wanted) == len(got)
    assert all(one == other for one, other in zip(wanted, got) if one < len(tokens))
PYTHON
