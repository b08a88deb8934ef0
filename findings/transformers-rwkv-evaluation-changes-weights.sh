#!/usr/bin/env bash
# A forward of RWKV in evaluation mode divides weights in place; what is saved after it is another model.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0, RWKV: the first forward after `eval()` divides the output matrices of later blocks by 2, 4, ...
in place, so that float16 does not overflow; activations are halved to match. `train()` alone does not undo it, the
next forward does. A checkpoint that is written between an evaluation and the next training step holds the divided
matrices; loaded, they are divided once more, and the logits differ.
"""

import torch
import transformers
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
config = RwkvConfig(vocab_size=64, hidden_size=32, attention_hidden_size=32, num_hidden_layers=4, rescale_every=2)
model, ids = RwkvForCausalLM(config).eval(), torch.arange(8)[None]
before = {name: value.clone() for name, value in model.state_dict().items()}


def divided() -> dict[str, float]:
    changed = {name: value for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    return {name: (value / before[name]).nanmedian().item() for name, value in changed.items()}


assert not divided()
with torch.no_grad():
    logits = model(ids).logits
print(f"transformers {transformers.__version__}, after a forward in evaluation mode: {divided()}")
assert set(divided().values()) == {0.5} and len(divided()) == 4
model.train()
assert len(divided()) == 4
model.save_pretrained("saved")
with torch.no_grad():
    loaded = RwkvForCausalLM.from_pretrained("saved").eval()(ids).logits
print(f"logits of what was saved differ by up to {(loaded - logits).abs().max():.2f}")
assert (loaded - logits).abs().max() > 0.1
PYTHON
