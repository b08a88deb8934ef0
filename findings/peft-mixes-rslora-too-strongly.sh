#!/usr/bin/env bash
# PEFT's add_weighted_adapter makes adapters with rsLoRA stronger by the root of the new rank.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: `add_weighted_adapter` multiplies the scaling of each adapter into its weights and gives the new one
`lora_alpha` = `r`, which is a scaling of 1, unless `use_rslora` is on: that is copied from the first adapter, and makes
it the root of r. One rsLoRA adapter of rank 16 with the weight 1 comes out four times as strong; the mean of two ("cat",
which the documentation calls precise, with the sum of their ranks) 5.7 times. LoRA comes out right; nothing is said.
"""

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def strengths(rank, **settings):
    """How strong the mean of two adapters, and one adapter with the weight 1, are beside what they should be."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4)
    )
    config = LoraConfig(r=rank, lora_alpha=16, target_modules=["q_proj"], init_lora_weights=False, **settings)
    model = get_peft_model(model, config, adapter_name="first")
    model.add_adapter("second", config)
    model.add_weighted_adapter(["first", "second"], [0.5, 0.5], "mean", combination_type="cat")
    model.add_weighted_adapter(["first"], [1.0], "one")
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    first, second, mean, one = (layer.get_delta_weight(name) for name in ("first", "second", "mean", "one"))
    return [(got.norm() / wanted.norm()).item() for got, wanted in ((mean, (first + second) / 2), (one, first))]


print(f"peft {peft.__version__}, strength of the mean of two adapters, and of one with the weight 1:")
for rank in (4, 16):
    plain, scaled = strengths(rank), strengths(rank, use_rslora=True)
    print(f"  rank {rank}: LoRA {plain[0]:.3f}, {plain[1]:.3f}; rsLoRA {scaled[0]:.3f}, {scaled[1]:.3f}")
    assert all(abs(got - 1) < 1e-3 for got in plain)
    # Of "cat" the new rank is the sum.
    assert abs(scaled[0] - (2 * rank) ** 0.5) < 1e-3 and abs(scaled[1] - rank**0.5) < 1e-3
PYTHON
