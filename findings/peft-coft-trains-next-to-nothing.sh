#!/usr/bin/env bash
# With coft=True, OFT of PEFT is held so near to the base model that it trains next to nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check peft==0.21.2 torch==2.13.0 transformers==5.24.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: the constrained OFT of `OFTConfig(coft=True)` pulls the rotation of each block back to within `eps` of none, 6e-5 unless it is given,
which is far less than a layer of a language model needs to answer otherwise. Losses stay where they began, whatever the
learning rate, and nothing is said. Set eps to about 1.
"""

import torch
import transformers
from peft import OFTConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
ids = torch.tensor([[(3 * row + 5 * place) % 60 for place in range(16)] for row in range(8)])


def losses(**options):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(initializer_range=0.2, **sizes))
    model = get_peft_model(model, OFTConfig(r=0, oft_block_size=8, target_modules="all-linear", use_cayley_neumann=False, **options))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.02, weight_decay=0)
    found = []
    for _ in range(100):
        loss = model(ids, labels=ids).loss
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found[0], found[-1]


print("peft 0.21.2, OFT of a small Llama, loss before and after 100 steps:")
for options in ({}, {"coft": True}, {"coft": True, "eps": 1.0}):
    first, last = losses(**options)
    print(f"  {options or 'not constrained'}: {first:.4f}, {last:.4f}")
    assert abs(first - last) < 0.01 if options == {"coft": True} else last < first - 1
PYTHON
