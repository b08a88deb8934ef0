#!/usr/bin/env bash
# AutoTokenizer opens a tokenizer saved beside a Qwen 2 with Qwen's rules in place of its own.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: where config.json says `qwen2` or `qwen3_5`, AutoTokenizer takes Qwen's class whatever
`tokenizer_class` says, also the one that `save_pretrained` wrote. That class takes the vocabulary and merges from
tokenizer.json and has its own rules to split and normalise: of a tokenizer of one's own, on which such a model may have been
trained, digits are split one by one in place of three by three. The text that comes back is the same, and nothing is said;
saved once more, tokenizer.json has the other rules too. Beside a Llama the same folder opens as it was saved.
"""

from pathlib import Path

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

TEXT = "add 12345 to 678"
own = Tokenizer(models.BPE())
threes = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s"), "isolated")
own.pre_tokenizer = pre_tokenizers.Sequence([threes, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
own.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
own.train_from_iterator([TEXT] * 20, trainers.BpeTrainer(vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet))
saved = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>")


def opened(config, name):
    saved.save_pretrained(name)
    config.save_pretrained(name)
    return AutoTokenizer.from_pretrained(name)


llama, qwen = opened(LlamaConfig(), "llama"), opened(Qwen2Config(), "qwen")
print(f"transformers {transformers.__version__}, {TEXT!r}:")
for name, tokenizer in (("as saved", saved), ("beside Llama", llama), ("beside Qwen 2", qwen)):
    print(f"  {name}: {type(tokenizer).__name__} {tokenizer.tokenize(TEXT)}")
wanted = saved(TEXT)["input_ids"]
assert llama(TEXT)["input_ids"] == wanted != qwen(TEXT)["input_ids"]
assert qwen.decode(qwen(TEXT)["input_ids"]) == TEXT
qwen.save_pretrained("again")
again = Tokenizer.from_file("again/tokenizer.json")
assert Tokenizer.from_file("qwen/tokenizer.json").encode(TEXT).ids == wanted != again.encode(TEXT).ids
assert "123" in Path("again/tokenizer.json").read_text()
PYTHON
