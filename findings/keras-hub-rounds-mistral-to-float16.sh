#!/usr/bin/env bash
# keras-hub rounds the weights of a Mistral to float16 also where it is opened in float32.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 keras==3.15.1 kagglehub==1.0.3 sentencepiece==0.2.3
# Without what it asks for beside these, tensorflow-text, which the models do not need.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps keras-hub==0.32.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" KERAS_HOME="$folder/keras" KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""keras-hub 0.32.0 converts each weight of a Mistral to float16 on its way in, whatever `dtype` asks for. A model saved and
opened in float32 has other weights and logits, and a weight under 3e-8, which bfloat16 holds too, is nought; nothing is said.
Qwen 2, with the same call, keeps every bit.
"""

from importlib.metadata import version

import keras
import keras_hub
import torch
from transformers import AutoConfig, AutoModelForCausalLM

ids = torch.tensor([[7 * place % 60 + 3 for place in range(40)]])
small = 2.0**-30


def opened_and_saved(family):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        rms_norm_eps=1e-6,
        sliding_window=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[1] = small
    model.save_pretrained("model")
    opened = keras_hub.models.CausalLM.from_preset("model", preprocessor=None, dtype="float32")
    with torch.no_grad():
        got = opened({"token_ids": ids, "padding_mask": torch.ones_like(ids)})
        apart = abs(keras.ops.convert_to_numpy(got) - model(ids).logits.numpy()).max()
    embeddings = keras.ops.convert_to_numpy(opened.backbone.get_layer("token_embedding").embeddings)
    return apart, embeddings[1, 0], (embeddings != model.model.embed_tokens.weight.detach().numpy()).mean()


print(f"keras-hub {version('keras-hub')}, float32:")
for family in ("qwen2", "mistral"):
    apart, kept, changed = opened_and_saved(family)
    print(f"  {family}: logits differ by {apart:.2g}, {changed:.0%} of embeddings changed, {small:.2g} is {kept:.2g}")
    if family == "qwen2":
        assert apart < 1e-4 and changed == 0
    else:
        assert apart > 1e-4 and changed > 0.9 and kept == 0
PYTHON
