#!/usr/bin/env bash
# mlx-lm weighs the chosen experts of Jamba to a sum of one, which the model does not.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mlx-lm 0.32.2 takes the softmax over the scores of the chosen experts of a Jamba mixture. In transformers it is over all
experts, and what the chosen get is less than one. With as many chosen as there are experts the two agree; with 2 of 4
every token of the converted model differs, and nothing is said.
"""

from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import JambaConfig, JambaForCausalLM

ids = [7 * place % 60 + 3 for place in range(40)]


def difference(chosen):
    torch.manual_seed(0)
    config = JambaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.2,
        num_experts=4,
        num_experts_per_tok=chosen,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=16,
        use_mamba_kernels=False,
    )
    model = JambaForCausalLM(config).eval()
    model.save_pretrained("model")
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    opened, _ = load_model(Path("model"))
    return abs(np.array(opened(mx.array([ids]))[0]) - wanted).max()


every, some = difference(4), difference(2)
print(f"mlx-lm {version('mlx-lm')}, largest difference of logits from transformers:")
print(f"  4 of 4 experts: {every:.2g}; 2 of 4: {some:.2g}")
assert every < 1e-4 and some > 1e-2
PYTHON
