#!/usr/bin/env bash
# keras-hub opens a Llama 3.1, or a Qwen 3 with YaRN, without the scaling of its rotary positions.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 keras==3.15.1 kagglehub==1.0.3 sentencepiece==0.2.3
# Without what it asks for beside these, tensorflow-text, which the models do not need.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps keras-hub==0.32.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" KERAS_HOME="$folder/keras" KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""keras-hub 0.32.0 looks for Llama's scaling under `rope_scaling`. transformers 5.23.0 writes it into `rope_parameters`
alone, from which keras-hub takes the base of the rotation and leaves the rest: a Llama 3.1 rotates as if it had no scaling,
and nothing is said. Its Qwen 3 reads no scaling at all. With the default rotation both give the logits of transformers.
"""

from importlib.metadata import version

import keras
import keras_hub
import torch
from transformers import AutoConfig, AutoModelForCausalLM

ids = torch.tensor([[7 * place % 60 + 3 for place in range(40)]])
scalings = {
    "llama": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "qwen3": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64},
}


def difference(family, rotation):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.15,
        rms_norm_eps=1e-6,
        rope_parameters=rotation,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained("model")
    opened = keras_hub.models.CausalLM.from_preset("model", preprocessor=None, dtype="float32")
    with torch.no_grad():
        got = opened({"token_ids": ids, "padding_mask": torch.ones_like(ids)})
        return abs(keras.ops.convert_to_numpy(got) - model(ids).logits.numpy()).max()


print(f"keras-hub {version('keras-hub')}, largest difference of logits from transformers:")
for family, scaling in scalings.items():
    plain = difference(family, {"rope_type": "default", "rope_theta": scaling["rope_theta"]})
    scaled = difference(family, scaling)
    print(f"  {family}: default {plain:.2g}; {scaling['rope_type']} {scaled:.2g}")
    assert plain < 1e-3 and scaled > 1e-1
PYTHON
