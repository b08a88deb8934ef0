#!/usr/bin/env bash
# PEFT merges the adapters of replicated layers into one weight that all the copies share.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: `layer_replication` makes new layers that share the weights of old ones and have
adapters of their own. `merge_adapter` and `merge_and_unload` add all of those adapters to the one
shared weight, so that each copy of a layer has the sum: the merged model, and what it saves, is
another one than was trained. No warning. `unmerge_adapter` takes the sum off again.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def made(**settings):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, **settings)
    return get_peft_model(LlamaForCausalLM(config).eval(), lora).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(1, 13)[None]).logits


print(f"peft {peft.__version__}, largest change of a logit by merging:")
for settings in ({}, {"layer_replication": [(0, 2), (0, 2)]}):
    model = made(**settings)
    trained = logits(model)
    with model.disable_adapter():
        effect = (trained - logits(model)).abs().max().item()
    change = (logits(model.merge_and_unload()) - trained).abs().max().item()
    print(f"  {settings or 'each layer once'}: {change:.6f}, where the adapters change {effect:.3f}")
    assert change > 0.5 * effect if settings else change < 1e-5
PYTHON
