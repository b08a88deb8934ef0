#!/usr/bin/env bash
# onnxruntime-genai's tokenizer does not normalise text, as Qwen's and many others do.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6 onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""Qwen composes accents before it splits text (NFC): "e" and a combining acute, as file names and text from macOS have it,
are the tokens of "é". The tokenizer of onnxruntime-genai 0.18.0 does not read the normalizer of tokenizer.json: such
words come out in pieces that the model has hardly seen, and nothing is said. So it is with lower-casing and NFKC.
"""

import json
import unicodedata
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime_genai
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer, Qwen2Tokenizer

TEXT = "un café là-bas"
trained = Tokenizer(BPE())
trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
trained.train_from_iterator([TEXT] * 20, trainer)
held = json.loads(trained.to_str())["model"]
Qwen2Tokenizer(vocab=held["vocab"], merges=[tuple(pair) for pair in held["merges"]]).save_pretrained("model")
# A model is needed to open a tokenizer: one that looks logits up.
graph = helper.make_graph(
    [helper.make_node("Gather", ["table", "input_ids"], ["logits"])],
    "model",
    [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", 300])],
    [numpy_helper.from_array(np.zeros((300, 300), np.float32), "table")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model/model.onnx")
sizes = {"head_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2}
names = {"inputs": {"input_ids": "input_ids"}, "outputs": {"logits": "logits"}}
decoder = {"filename": "model.onnx", "session_options": {}, **sizes, **names}
known = {"type": "qwen2", "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 300, "context_length": 64}
with open("model/genai_config.json", "w") as file:
    json.dump({"model": {**known, "decoder": decoder}, "search": {"max_length": 64}}, file)

opened = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model("model"))
tokenizer = AutoTokenizer.from_pretrained("model")
print(f"transformers {version('transformers')} and onnxruntime-genai {version('onnxruntime-genai')}:")
for form in ("NFC", "NFD"):
    text = unicodedata.normalize(form, TEXT)
    wanted, got = tokenizer(text)["input_ids"], list(map(int, opened.encode(text)))
    print(f"  {form}: {len(text)} characters, {len(wanted)} and {len(got)} tokens")
    assert (got == wanted) == (form == "NFC")
PYTHON
