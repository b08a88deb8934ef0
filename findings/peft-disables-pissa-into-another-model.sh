#!/usr/bin/env bash
# Under PEFT's disable_adapter a PiSSA or OLoRA model is not the base model.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: PiSSA and OLoRA take what their adapter begins with off the weights of the model.
`disable_adapter` switches the adapter off and does not put it back, so that what runs is the base
model less its largest directions. TRL's GRPO takes its reference model from a new adapter so.
LoRA, and LoRA that begins "orthogonal", give the base model. Nothing is said.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.arange(1, 13)[None]


def base():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


wanted = logits(base())
print(f"peft {peft.__version__}, largest difference of a logit from the base model's:")
for begins, alike in ((True, True), ("orthogonal", True), ("pissa", False), ("olora", False)):
    config = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=begins)
    model = get_peft_model(base(), config).eval()
    on = (logits(model) - wanted).abs().max().item()
    with model.disable_adapter():
        off = (logits(model) - wanted).abs().max().item()
    print(f"  {begins}: {on:.6f} with the new adapter, {off:.6f} with it disabled")
    assert on < 1e-4
    assert off < 1e-4 if alike else off > 0.1
PYTHON
