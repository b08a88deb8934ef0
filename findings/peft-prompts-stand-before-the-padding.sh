#!/usr/bin/env bash
# A soft prompt of PEFT stands before a row's padding, and so the row's answer is another one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: prompt tuning puts its trained tokens before whatever is given. In a batch padded on the left, as generation wants it, they stand before
the padding, and positions count on over it: a shorter row lies further away from its prompt than in training. Its logits and answers change
with the length of its neighbours. All that
is said is that position ids are ignored, where `generate` makes them. Without a prompt padding changes nothing.
"""

import peft
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.1, pad_token_id=0, eos_token_id=None)).eval()
text = torch.tensor([[5, 6, 7]])
alone = {"input_ids": text, "attention_mask": torch.ones_like(text)}
padding = torch.zeros(1, 5, dtype=torch.long)
padded = {"input_ids": torch.cat([padding, text], 1), "attention_mask": torch.cat([padding, torch.ones_like(text)], 1)}


def compared(model):
    with torch.no_grad():
        apart = (model(**alone).logits[:, -1] - model(**padded).logits[:, -1]).abs().max().item()
        made = [model.generate(**of, max_new_tokens=8, do_sample=False)[0, of["input_ids"].shape[1] :].tolist() for of in (alone, padded)]
    return apart, made


print(f"peft {peft.__version__}, the same text alone and behind 5 tokens of padding:")
plain = compared(model)
prompted = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
for label, (apart, made) in {"without a prompt": plain, "with a prompt of 4 tokens": (with_prompt := compared(prompted))}.items():
    print(f"  {label}: logits apart by {apart:.2g}; answers {made[0]} and {made[1]}")
assert plain[0] < 1e-4 and plain[1][0] == plain[1][1]
assert with_prompt[0] > 0.1
PYTHON
