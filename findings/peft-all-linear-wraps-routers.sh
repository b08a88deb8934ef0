#!/usr/bin/env bash
# PEFT's "all-linear" wraps routers of mixtures that are linear layers and return more than one tensor.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2 with transformers 5.23.0: `target_modules="all-linear"` takes every module that is a `torch.nn.Linear`,
subclasses too. The router of Phi-3.5-MoE is one, and its forward returns logits, weights and choices; the adapter
around it expects a tensor. The model is built without a word, and its first forward ends in an AttributeError.
Without the routers in the list, it runs.
"""

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import PhimoeConfig, PhimoeForCausalLM

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": 4}


def adapted(**settings):
    return get_peft_model(PhimoeForCausalLM(PhimoeConfig(**SIZES)), LoraConfig(target_modules="all-linear", **settings))


model = adapted()
wrapped = [name for name, module in model.named_modules() if name.endswith("router") and hasattr(module, "lora_A")]
print(f"peft {peft.__version__}, transformers {transformers.__version__}, wrapped: {wrapped}")
assert len(wrapped) == 2
ids = torch.arange(8)[None]
try:
    model(ids)
except AttributeError as error:
    print(f"AttributeError: {error}")
else:
    raise AssertionError("the wrapped routers run now")
assert adapted(exclude_modules=r".*router").forward(ids).logits.shape == (1, 8, 64)
PYTHON
