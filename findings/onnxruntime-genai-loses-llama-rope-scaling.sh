#!/usr/bin/env bash
# onnxruntime-genai's builder exports a Llama with linear scaling of its rotary positions, or YaRN, as one without.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 onnx-ir==1.1.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""The builder of onnxruntime-genai 0.18.0 knows linear scaling and YaRN, and refuses kinds that it does not know. Its class
for Llama replaces that part by one that knows `llama3` alone and passes over every other: long-context Llamas with linear
scaling or YaRN are exported with plain rotation, without a word. Qwen 2 with linear scaling comes out as it was.
"""

import contextlib
import io
import shutil
from importlib.metadata import version

import numpy as np
import onnxruntime_genai
import torch
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

WORDS = 64
ids = [7 * place % 60 + 3 for place in range(40)]
linear = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
original = {"original_max_position_embeddings": 32}
yarn = linear | original | {"rope_type": "yarn"}
llama3 = linear | original | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def exported():
    shutil.rmtree("exported", ignore_errors=True)
    arguments = ("", "model", "exported", "fp32", "cpu", "cache")
    with contextlib.redirect_stdout(io.StringIO()):
        create_model(*arguments, **parse_extra_options(*arguments, []))
    opened = onnxruntime_genai.Model("exported")
    settings = onnxruntime_genai.GeneratorParams(opened)
    settings.set_search_options(max_length=len(ids) + 1)
    generator = onnxruntime_genai.Generator(opened, settings)
    generator.append_tokens(np.array(ids, dtype=np.int32))
    return generator.get_output("logits").reshape(-1, WORDS)[-1]


def difference(family, rotation):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=WORDS,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=128,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        rope_parameters=rotation,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained("model")
    words = {f"w{number}": number for number in range(3, WORDS)} | {"<unk>": 0, "<bos>": 1, "<eos>": 2}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
    ).save_pretrained("model")
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0, -1].numpy()
    return abs(exported() - wanted).max()


print(f"onnxruntime-genai {version('onnxruntime-genai')}, largest difference of the last logits from transformers:")
for family, rotation, lost in (
    ("qwen2", linear, False),
    ("llama", llama3, False),
    ("llama", linear, True),
    ("llama", yarn, True),
):
    apart = difference(family, rotation)
    print(f"  {family}, {rotation['rope_type']}: {apart:.2g}")
    assert apart > 1e-1 if lost else apart < 1e-4
PYTHON
