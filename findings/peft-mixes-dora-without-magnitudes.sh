#!/usr/bin/env bash
# PEFT's add_weighted_adapter leaves out what DoRA adapters have learnt about magnitudes.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: DoRA trains a magnitude for each row of a weight beside A and B. `add_weighted_adapter` takes A and B of its
adapters, and the new one, a DoRA adapter too, has the magnitudes of the base model: one adapter with the weight 1 gives other
logits than itself, and nothing is said. LoRA, and DoRA whose magnitudes were not trained, come out as they were.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.arange(12)[None]


def difference(use_dora, trained):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, initializer_range=0.1, **sizes))
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=use_dora)
    model = get_peft_model(model, config, adapter_name="own").eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
        if trained and "magnitude" in name:
            parameter.data.mul_(1 + 0.5 * torch.rand_like(parameter))
    with torch.no_grad():
        own = model(ids).logits
        model.add_weighted_adapter(["own"], [1.0], "mixed")
        model.set_adapter("mixed")
        assert model.peft_config["mixed"].use_dora == use_dora
        return (model.eval()(ids).logits - own).abs().max().item()


print(f"peft {peft.__version__}, largest difference of logits of an adapter and of the same with the weight 1:")
found = {label: difference(*case) for label, case in {
    "LoRA": (False, False),
    "DoRA, magnitudes of the base": (True, False),
    "DoRA, magnitudes trained": (True, True),
}.items()}
for label, apart in found.items():
    print(f"  {label}: {apart:.2g}")
    assert (apart > 0.05) == (label == "DoRA, magnitudes trained") and (apart > 0.05 or apart < 1e-5)
PYTHON
