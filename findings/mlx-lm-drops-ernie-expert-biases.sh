#!/usr/bin/env bash
# mlx-lm drops the bias by which ERNIE 4.5's mixtures choose their experts.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mlx-lm 0.32.2 removes `e_score_correction_bias` of ernie4_5_moe while loading and chooses experts without it. The published
models have been trained to balance by that bias: other experts are taken for many tokens, and nothing is said.
"""

import json
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

ids = [7 * place % 60 + 3 for place in range(40)]


def difference(bias):
    torch.manual_seed(0)
    config = Ernie4_5_MoeConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.2,
        moe_num_experts=8,
        moe_k=2,
        moe_intermediate_size=32,
        moe_layer_start_index=0,
        moe_layer_interval=1,
        moe_num_shared_experts=1,
    )
    model = Ernie4_5_MoeForCausalLM(config).eval()
    found = [tensor for name, tensor in model.state_dict().items() if "e_score_correction_bias" in name]
    assert len(found) == 2
    for tensor in found:
        tensor.copy_(bias * torch.arange(8.0))
    model.save_pretrained("model")
    saved = Path("model/config.json")
    stated = json.loads(saved.read_text())
    saved.write_text(json.dumps({**stated, "rope_theta": stated["rope_parameters"]["rope_theta"]}))
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    opened, _ = load_model(Path("model"))
    return abs(np.array(opened(mx.array([ids]))[0]) - wanted).max()


without, with_bias = difference(0.0), difference(0.05)
print(f"mlx-lm {version('mlx-lm')}, largest difference of logits from transformers:")
print(f"  all biases 0: {without:.2g}; biases of 0 to 0.35: {with_bias:.2g}")
assert without < 1e-4 and with_bias > 1e-2
PYTHON
