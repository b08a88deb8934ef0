#!/usr/bin/env bash
# PEFT's add_weighted_adapter leaves out the modules and tokens that adapters have trained whole.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: an adapter may hold trained copies of whole modules (`modules_to_save`, as the head) and of rows of the embedding
(`trainable_token_indices`) beside its LoRA weights. `add_weighted_adapter` mixes LoRA weights alone, says nothing, and gives the new adapter the
base model's modules and rows: one adapter with the weight 1 answers otherwise than itself.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.arange(12)[None]


def difference(**more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, initializer_range=0.1, **sizes))
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **more), adapter_name="own").eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    with torch.no_grad():
        own = model(ids).logits
        model.add_weighted_adapter(["own"], [1.0], "mixed")
        model.set_adapter("mixed")
        return (model.eval()(ids).logits - own).abs().max().item()


print(f"peft {peft.__version__}, largest difference of logits of an adapter and of the same with the weight 1:")
for label, more in {
    "LoRA": {},
    "LoRA and the head": {"modules_to_save": ["lm_head"]},
    "LoRA and two tokens": {"trainable_token_indices": [1, 2]},
}.items():
    apart = difference(**more)
    print(f"  {label}: {apart:.2g}")
    assert apart > 0.5 if more else apart < 1e-5
PYTHON
