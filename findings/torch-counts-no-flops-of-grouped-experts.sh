#!/usr/bin/env bash
# PyTorch's FLOP counter counts nothing for grouped_mm, by which transformers runs experts.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `FlopCounterMode` has no formula for `grouped_mm`, and says nothing of operators that it has none for.
transformers 5.23.0 runs experts of mixtures by it, unless told otherwise: of a Qwen3 MoE with most of its work in experts
the counter sees a twelfth. Attention by `scaled_dot_product_attention` counts as nothing on CPU as well. So FLOPs of a step, and
utilisations from them, come out too low; `set_experts_implementation("batched_mm")` and "eager" are counted.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

sizes = {"vocab_size": 64, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
torch.manual_seed(0)
model = Qwen3MoeForCausalLM(Qwen3MoeConfig(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512, **sizes))
ids = torch.arange(100)[None] % 64
of_experts = 2 * 100 * 2 * 3 * 64 * 512  # tokens x experts of each x matrices, and a multiplication and an addition


def counted(work):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work()
    return counter.get_total_flops()


print(f"torch {torch.__version__}; experts take {of_experts:,} FLOPs. The counter has, of the whole model:")
default = model.config._experts_implementation
found = {default: counted(lambda: model(ids))}
for name in ("batched_mm", "eager"):
    model.set_experts_implementation(name)
    found[name] = counted(lambda: model(ids))
for name, flops in found.items():
    print(f"  {name}: {flops:,}")
heads = torch.randn(1, 8, 128, 64)
attention = counted(lambda: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads))
print(f"and of attention that takes {4 * 8 * 128 * 128 * 64:,} on CPU: {attention:,}")
assert default == "grouped_mm" and found[default] < of_experts / 10
assert found["eager"] == found["batched_mm"] > of_experts and attention == 0
PYTHON
