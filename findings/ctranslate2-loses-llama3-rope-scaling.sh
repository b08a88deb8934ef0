#!/usr/bin/env bash
# CTranslate2 converts a Llama 3.1 without the scaling of its rotary positions.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 ctranslate2==4.8.5
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""CTranslate2 4.8.5 takes a Llama with `rope_type: llama3`, as Llama 3.1, 3.2 and 3.3 have it, without a word, and keeps
its low and high frequency factors, but not `factor`: that one is written for linear scaling alone. The converted model
gives the logits of the same weights without scaling, to 1e-4; those of transformers differ from the first tokens on.
"""

import shutil
from importlib.metadata import version

import ctranslate2
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 64
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN = {"rope_type": "default", "rope_theta": 500_000.0}
ids = [7 * place % 60 + 3 for place in range(200)]


def logits(rotary):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        initializer_range=0.15,
        rope_parameters=rotary,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained("model")
    words = {f"w{number}": number for number in range(3, WORDS)} | {"<unk>": 0, "<s>": 1, "</s>": 2}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    ).save_pretrained("model")
    shutil.rmtree("converted", ignore_errors=True)
    ctranslate2.converters.TransformersConverter("model").convert("converted")
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    generator = ctranslate2.Generator("converted", compute_type="float32")
    return wanted, np.array(generator.forward_batch([[f"w{number}" for number in ids]]))[0, :, :WORDS]


plain, plain_converted = logits(PLAIN)
scaled, scaled_converted = logits(SCALED)
off = {
    "without scaling, converted beside transformers": abs(plain_converted - plain).max(),
    "with scaling, converted beside transformers": abs(scaled_converted - scaled).max(),
    "with scaling, converted beside transformers without": abs(scaled_converted - plain).max(),
}
print(f"ctranslate2 {version('ctranslate2')}, largest difference of logits of {abs(plain).max():.1f} at most:")
for what, figure in off.items():
    print(f"  {what}: {figure:.2g}")
assert [figure < 1e-4 for figure in off.values()] == [True, False, True]
PYTHON
