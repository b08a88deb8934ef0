#!/usr/bin/env bash
# The loss of an AdaLoRA model in PEFT has a penalty in it in evaluation too, or has none in training.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: AdaLoRA adds a penalty on its matrices to the loss. With `task_type` it adds it in evaluation as in training, and under
`disable_adapter` to the base model's loss: validation losses and perplexities are not the model's, and fall as the penalty does.
Without `task_type`, which other adapters can do without, it is never added, and AdaLoRA trains without it. Nothing is said of either.
"""

import peft
import torch
from peft import AdaLoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

ids = torch.arange(12)[None]


def losses(task_type, training):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    )
    config = AdaLoraConfig(total_step=100, tinit=10, tfinal=10, target_modules=["q_proj"], task_type=task_type)
    model = get_peft_model(model, config).train(training)
    got = model(input_ids=ids, labels=ids)
    with model.disable_adapter():
        disabled = model(input_ids=ids, labels=ids).loss.item()
    return torch.nn.functional.cross_entropy(got.logits[0, :-1], ids[0, 1:]).item(), got.loss.item(), disabled


print(f"peft {peft.__version__}, loss by the logits, loss that the model gives, the same with the adapter disabled:")
for task_type in ("CAUSAL_LM", None):
    for training in (True, False):
        found = losses(task_type, training)
        print(f"  task_type={task_type}, {'training' if training else 'evaluation'}: " + ", ".join(f"{loss:.3f}" for loss in found))
        penalties = [loss - found[0] for loss in found[1:]]
        assert all(penalty > 1 if task_type else abs(penalty) < 1e-4 for penalty in penalties)
PYTHON
