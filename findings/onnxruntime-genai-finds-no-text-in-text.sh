#!/usr/bin/env bash
# In chat templates that onnxruntime-genai renders, no text is ever in another text.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6 onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""onnxruntime-genai 0.18.0: `'</think>' in message.content` is false whatever the text is, and nothing is said. Templates of
models that think ask just that to leave the thoughts of earlier turns out, as Qwen 3's does: they stay in the prompt, which
grows by them, and which the model was not trained on. In lists and mappings `in` finds what is there. transformers finds both.
"""

import json
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime_genai
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TEMPLATE = """{%- for message in messages %}
    {%- set text = message.content %}
    {%- if '</think>' in text %}
        {%- set text = text.split('</think>')[-1] %}
    {%- endif %}
    {{- '<' + message.role + '>' + text }}
{%- endfor %}"""
chat = [
    {"role": "user", "content": "two and two?"},
    {"role": "assistant", "content": "<think>let me count</think>four"},
    {"role": "user", "content": "and three?"},
]

words = {"<unk>": 0, "<bos>": 1, "<eos>": 2, "four": 3}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.BPE(words, [], unk_token="<unk>")), unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
)
tokenizer.save_pretrained("model")
# A model is needed to open a tokenizer: one that looks logits up.
graph = helper.make_graph(
    [helper.make_node("Gather", ["table", "input_ids"], ["logits"])],
    "model",
    [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", 4])],
    [numpy_helper.from_array(np.zeros((4, 4), np.float32), "table")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model/model.onnx")
sizes = {"head_size": 8, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2}
names = {"inputs": {"input_ids": "input_ids"}, "outputs": {"logits": "logits"}}
decoder = {"filename": "model.onnx", "session_options": {}, **sizes, **names}
held = {"type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": 4, "context_length": 64}
with open("model/genai_config.json", "w") as file:
    json.dump({"model": {**held, "decoder": decoder}, "search": {"max_length": 64}}, file)

opened = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model("model"))


def both(template):
    got = opened.apply_chat_template(json.dumps(chat), template_str=template, add_generation_prompt=False)
    return tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False), got


print(f"transformers {version('transformers')} and onnxruntime-genai {version('onnxruntime-genai')}:")
for template in (TEMPLATE, "{{ 'two' in messages[0].content }}", "{{ 'role' in messages[0] }}", "{{ 'a' in ['a'] }}"):
    wanted, got = both(template)
    print(f"  {wanted!r}\n  {got!r}")
    assert (got == wanted) == (template not in (TEMPLATE, "{{ 'two' in messages[0].content }}"))
assert "let me count" in both(TEMPLATE)[1] and "let me count" not in both(TEMPLATE)[0]
PYTHON
