#!/usr/bin/env bash
# mlx-lm attends to all tokens in the layers of Gemma 2 that have a window.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mlx-lm 0.32.2 has one causal mask for all layers of Gemma 2 and no `sliding_window`. Texts within the window (4,096 tokens in the
published models, whose context is 8,192) give the logits of transformers; after it, other ones, without a word.
"""

from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import Gemma2Config, Gemma2ForCausalLM

ids = [7 * place % 60 + 3 for place in range(40)]


def difference():
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.2,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=16,
    )
    model = Gemma2ForCausalLM(config).eval()
    model.save_pretrained("model")
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0].numpy()
    opened, _ = load_model(Path("model"))
    return abs(np.array(opened(mx.array([ids]))[0]) - wanted).max(axis=-1)


off = difference()
print(f"mlx-lm {version('mlx-lm')}, window of 16, largest difference of logits from transformers:")
print(f"  tokens 1 to 16: {off[:16].max():.2g}; 17 to {len(ids)}: {off[16:].max():.2g}")
assert off[:16].max() < 1e-4 and off[16:].max() > 1e-2
PYTHON
