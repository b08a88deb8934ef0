#!/usr/bin/env bash
# merge_and_unload after merge_adapter adds an OSF adapter of PEFT a second time.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""peft 0.21.2: a model whose adapters are merged already (`merge_adapter`, say for an evaluation) keeps its outputs through
`merge_and_unload` where they are LoRA: layers skip adapters that they have merged. Layers of OSF do not look: their change is added
again, with each further call too, and what is saved is another model. One call alone comes out right.
"""

import copy
from importlib.metadata import version

import torch
from peft import LoraConfig, OSFConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3
)
model = LlamaForCausalLM(config).eval()
ids = torch.randint(0, 40, (2, 7))


def logits(module):
    """The model's logits for the same two rows."""
    with torch.no_grad():
        return module(ids).logits


print(f"peft {version('peft')}, largest change of logits by merging, with one call and with merge_adapter before it:")
found = {}
for kind in (LoraConfig, OSFConfig):
    for calls in (1, 2):
        adapted = get_peft_model(copy.deepcopy(model), kind(target_modules=["q_proj", "v_proj"])).eval()
        generator = torch.Generator().manual_seed(1)
        for weights in adapted.parameters():
            if weights.requires_grad:
                weights.data += 0.1 * torch.randn(weights.shape, generator=generator)
        trained = logits(adapted)
        assert (trained - logits(model)).abs().max() > 0.1
        if calls == 2:
            adapted.merge_adapter()
            assert (logits(adapted) - trained).abs().max() < 1e-4
        found[kind.__name__, calls] = (logits(adapted.merge_and_unload()) - trained).abs().max().item()
    print(f"  {kind.__name__}: {found[kind.__name__, 1]:.1e}, {found[kind.__name__, 2]:.1e}")
assert all(change > 0.1 if key == ("OSFConfig", 2) else change < 1e-4 for key, change in found.items())
PYTHON
