#!/usr/bin/env bash
# keras-hub normalises every Llama with an epsilon of 1e-6, where Llama 2 and 3 have 1e-5.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 keras==3.15.1 kagglehub==1.0.3 sentencepiece==0.2.3
# Without what it asks for beside these, tensorflow-text, which the models do not need.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps keras-hub==0.32.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" KERAS_HOME="$folder/keras" KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""keras-hub 0.32.0 does not read `rms_norm_eps` of a Llama: its norms add 1e-6 whatever the config says. Llama 2 and 3 say
1e-5. Where embeddings are of some hundredths, as theirs are, that is a tenth of what the first norm divides by, and the
logits move; the error is silent. With 1e-6 in the config they are those of transformers. Mistral and Qwen are read right.
"""

from importlib.metadata import version

import keras
import keras_hub
import torch
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.tensor([[7 * place % 60 + 3 for place in range(40)]])


def difference(epsilon):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        rms_norm_eps=epsilon,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.01 / 0.15)
    model.save_pretrained("model")
    opened = keras_hub.models.CausalLM.from_preset("model", preprocessor=None, dtype="float32")
    assert opened.backbone.get_config()["layer_norm_epsilon"] == 1e-6
    with torch.no_grad():
        got = opened({"token_ids": ids, "padding_mask": torch.ones_like(ids)})
        return abs(keras.ops.convert_to_numpy(got) - model(ids).logits.numpy()).max()


same, other = difference(1e-6), difference(1e-5)
print(f"keras-hub {version('keras-hub')}, largest difference of logits from transformers:")
print(f"  rms_norm_eps 1e-6: {same:.2g}; 1e-5: {other:.2g}")
assert same < 1e-4 and other > 1e-2
PYTHON
