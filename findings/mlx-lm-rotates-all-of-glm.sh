#!/usr/bin/env bash
# mlx-lm rotates whole heads of GLM, where the model rotates half of each.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mlx-lm 0.32.2 has no `partial_rotary_factor` for model type "glm" (GLM-4-9B as transformers has it, where it is 0.5; "glm4"
reads it). Whole heads are rotated, without a word: from the second token on the logits are another model's. With a
factor of 1 the two agree. The names that transformers 4 wrote are added to config.json here, which changes nothing.
"""

import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import GlmConfig, GlmForCausalLM

ids = [7 * place % 60 + 3 for place in range(40)]


def difference(factor):
    torch.manual_seed(0)
    config = GlmConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.2,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": factor},
    )
    model = GlmForCausalLM(config).eval()
    model.save_pretrained("model")
    saved = Path("model/config.json")
    stated = json.loads(saved.read_text())
    saved.write_text(json.dumps({**stated, "rope_theta": stated["rope_parameters"]["rope_theta"], "partial_rotary_factor": factor}))
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    opened, _ = load_model(Path("model"))
    return abs(np.array(opened(mx.array([ids]))[0]) - wanted).max(axis=-1)


whole, half = difference(1.0), difference(0.5)
print(f"mlx-lm {version('mlx-lm')}, largest difference of logits from transformers:")
print(f"  all of a head is rotated: {whole.max():.2g}")
print(f"  half of it: {half[0]:.2g} of the first token, {half[1:].max():.2g} of the others")
assert whole.max() < 1e-4 and half[0] < 1e-4 < 1e-2 < half[1:].max()
PYTHON
