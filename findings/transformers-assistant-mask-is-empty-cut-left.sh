#!/usr/bin/env bash
# Cut on the left, a chat has no token of the assistant in its mask.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3 jinja2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: `apply_chat_template(return_assistant_tokens_mask=True)` marks what the template has between `generation`
tags. Where the tokenizer cuts on the left (`truncation_side="left"`, by which a long chat keeps its last answer), and an answer of the assistant is cut,
the mask is zero for all answers after it too, the whole last one included: such a chat trains nothing. Cut on the right, what is left is marked.
"""

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

marks = ["<|user|>", "<|assistant|>", "<|end|>"]
own = Tokenizer(models.BPE(vocab={text: place for place, text in enumerate([*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())])}, merges=[]))
own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
own.add_special_tokens(marks)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=own)
tokenizer.chat_template = """{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.role == "assistant" %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif -%}
{%- endfor -%}"""
said = [("user", "hi"), ("assistant", "first"), ("user", "and?"), ("assistant", "second")]
chat = [{"role": role, "content": content} for role, content in said]


def marked(**more):
    made = tokenizer.apply_chat_template(chat, return_assistant_tokens_mask=True, return_dict=True, **more)
    kept = [token for token, of_assistant in zip(made["input_ids"], made["assistant_masks"]) if of_assistant]
    return tokenizer.decode(made["input_ids"]), tokenizer.decode(kept)


print(f"transformers {transformers.__version__}, a chat and what the mask has of it:")
found = {"whole": marked()}
for side in ("right", "left"):
    tokenizer.truncation_side = side
    for kept in (18, 10):
        found[f"{kept} tokens, cut on the {side}"] = marked(truncation=True, max_length=kept)
for label, (text, of_assistant) in found.items():
    print(f"  {label}: {text!r}: {of_assistant!r}")
assert found["whole"][1] == "first<|end|>second<|end|>" and found["18 tokens, cut on the right"][1].startswith("first<|end|>")
for kept in (18, 10):
    text, of_assistant = found[f"{kept} tokens, cut on the left"]
    assert text.endswith("<|assistant|>second<|end|>") and of_assistant == ""
PYTHON
