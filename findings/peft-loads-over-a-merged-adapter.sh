#!/usr/bin/env bash
# An adapter that PEFT loads over a merged one is not used, and unmerging then spoils the model.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: `load_adapter` under the name of an adapter that is merged replaces its matrices
and leaves the weights that it was merged into. The model goes on answering by the old adapter; and
`unmerge_adapter` takes the new one off, so that under `disable_adapter` the base model is another
one from then on. Deleting or swapping a merged adapter raises an error; loading says nothing.
"""

import tempfile

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def made(seed):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(1, 13)[None]).logits


def same(first, second):
    return (first - second).abs().max().item() < 1e-5


print(f"peft {peft.__version__}, an adapter loaded under the name of another one:")
old, new = made(1), made(2)
wanted, before = logits(new), logits(old)
with new.disable_adapter():
    base = logits(new)
for merged in (False, True):
    with tempfile.TemporaryDirectory() as folder:
        new.save_pretrained(folder)
        model = made(1)
        if merged:
            model.merge_adapter()
        model.load_adapter(folder, "default")
    model.eval()
    found = logits(model)
    if merged:
        model.unmerge_adapter()
    with model.disable_adapter():
        below = logits(model)
    told = f"answers as the new one: {same(found, wanted)}, as the old one: {same(found, before)}"
    print(f"  {'merged' if merged else 'not merged'}: {told}, base model kept: {same(below, base)}")
    assert same(found, before if merged else wanted) and same(below, base) != merged
PYTHON
