#!/usr/bin/env bash
# A new adapter of FourierFT or C3A changes a model in PEFT before it is trained.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: the adapters of LoRA, LoHa, OFT, VeRA and others change nothing before they are
trained. FourierFT and C3A, unless `init_weights` is set, begin with random numbers that are added
to the weights: the first loss is that of another model, and what was learnt before is partly lost.
Here the new FourierFT adapter moves logits about as far as they lie apart.
"""

import peft
import torch
from peft import C3AConfig, FourierFTConfig, LoHaConfig, LoraConfig, OFTConfig, VeraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

TARGETS = ["q_proj", "o_proj"]


def base():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(1, 13)[None]).logits


wanted = logits(base())
print(f"peft {peft.__version__}, mean change of a logit by a new adapter, logits spread {wanted.std():.3f}:")
for config, same in (
    (LoraConfig(target_modules=TARGETS), True),
    (LoHaConfig(target_modules=TARGETS), True),
    (OFTConfig(target_modules=TARGETS, r=0, oft_block_size=8), True),
    (VeraConfig(target_modules=TARGETS, r=8), True),
    (FourierFTConfig(target_modules=TARGETS, n_frequency=100), False),
    (FourierFTConfig(target_modules=TARGETS, n_frequency=100, init_weights=True), True),
    (C3AConfig(target_modules=TARGETS, block_size=8), False),
    (C3AConfig(target_modules=TARGETS, block_size=8, init_weights=True), True),
):
    change = (logits(get_peft_model(base(), config)) - wanted).abs().mean().item()
    set_ = ", init_weights=True" if getattr(config, "init_weights", None) is True else ""
    print(f"  {type(config).__name__}{set_}: {change:.5f}")
    assert (change < 1e-6) == same and (same or change > 0.01)
PYTHON
