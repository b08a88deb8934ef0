#!/usr/bin/env bash
# keras-hub leaves out the scaling of attention by layer that some GPT-2 models have.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 keras==3.15.1 kagglehub==1.0.3 sentencepiece==0.2.3
# Without what it asks for beside these, tensorflow-text, which the models do not need.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps keras-hub==0.32.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" KERAS_HOME="$folder/keras" KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""With `scale_attn_by_inverse_layer_idx` a GPT-2 divides the attention scores of its n-th layer by n. keras-hub 0.32.0 reads
sizes alone from the config of a GPT-2 and opens such a model as a common one, without a word. So it does with
`scale_attn_weights` false and with another `activation_function`. A common GPT-2 has the logits of transformers.
"""

from importlib.metadata import version

import keras
import keras_hub
import torch
from transformers import GPT2Config, GPT2LMHeadModel

ids = torch.tensor([[7 * place % 60 + 3 for place in range(40)]])


def difference(**changed):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_embd=64,
        n_head=4,
        n_layer=2,
        n_positions=64,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=2,
        **changed,
    )
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained("model")
    opened = keras_hub.models.CausalLM.from_preset("model", preprocessor=None, dtype="float32")
    with torch.no_grad():
        got = opened({"token_ids": ids, "padding_mask": torch.ones_like(ids)})
        return abs(keras.ops.convert_to_numpy(got) - model(ids).logits.numpy()).max()


common = difference()
print(f"keras-hub {version('keras-hub')}, largest difference of logits from transformers: {common:.2g}")
assert common < 1e-4
for name, setting in (
    ("scale_attn_by_inverse_layer_idx", True),
    ("scale_attn_weights", False),
    ("activation_function", "relu"),
):
    apart = difference(**{name: setting})
    print(f"  {name} {setting}: {apart:.2g}")
    assert apart > 1e-2
PYTHON
