#!/usr/bin/env bash
# The "linear" mean of two like adapters in PEFT is twice as strong as each of them.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: `add_weighted_adapter` with "linear" adds the A matrices and the B matrices, each
by the root of its weight, and so also multiplies each adapter's A by the others' B. Of adapters
that are alike, as checkpoints of one run, the mean of two is twice as strong as each, and that of
four four times. With "ties" at density 1 the mean of two is half of each, and of "svd" and "cat"
it is right. The documentation calls "linear" a rough approximation.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
model = get_peft_model(LlamaForCausalLM(config), lora, adapter_name="0")
for name in "123":
    model.add_adapter(name, lora)
layer = model.base_model.model.model.layers[0].self_attn.q_proj
for matrices in (layer.lora_A, layer.lora_B):
    for name in "123":
        # Checkpoints of one run: one in a hundred of the numbers' size apart.
        first = matrices["0"].weight.data
        matrices[name].weight.data = first + torch.randn_like(first) * first.std() / 100

print(f"peft {peft.__version__}, strength of the mean of adapters that are nearly alike, beside that of each:")
for kind, two, four in (("linear", 2.0, 4.0), ("ties", 0.5, 0.25), ("svd", 1.0, 1.0), ("cat", 1.0, 1.0)):
    strengths = []
    for count in (2, 4):
        names, new = [str(place) for place in range(count)], f"{kind} {count}"
        density = {"density": 1.0} if kind == "ties" else {}
        model.add_weighted_adapter(names, [1 / count] * count, new, combination_type=kind, **density)
        strengths.append((layer.get_delta_weight(new).norm() / layer.get_delta_weight("0").norm()).item())
    print(f"  {kind}: of two {strengths[0]:.3f}, of four {strengths[1]:.3f}")
    assert abs(strengths[0] - two) < 0.05 and abs(strengths[1] - four) < 0.05
PYTHON
