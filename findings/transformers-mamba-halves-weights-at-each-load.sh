#!/usr/bin/env bash
# A Mamba or Mamba 2 that states `rescale_prenorm_residual` is divided anew each time that it is loaded.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0: `rescale_prenorm_residual: true` divides a block's output matrix by the root of the number of
blocks when a model is made, as GPT-2's paper has it. `from_pretrained` does the same to the matrices that it has just
read: of four blocks each is half of what the file holds, and a quarter after it is saved and read once more. Nothing
is logged.
"""

import torch
import transformers
from safetensors.torch import load_file
from transformers import Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

dims = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "state_size": 8, "rescale_prenorm_residual": True}
ids = torch.arange(8)[None]
for kind, config in (
    (MambaForCausalLM, MambaConfig(**dims)),
    (Mamba2ForCausalLM, Mamba2Config(**dims, num_heads=8, head_dim=8, n_groups=1, chunk_size=16)),
):
    torch.manual_seed(0)
    made = kind(config).eval()
    made.save_pretrained("first")
    stored = load_file("first/model.safetensors")
    loaded = kind.from_pretrained("first").eval()
    read = loaded.state_dict()
    changed = {name: read[name] for name in stored if not torch.equal(read[name], stored[name])}
    assert len(changed) == 4 and all(name.endswith("mixer.out_proj.weight") for name in changed)
    loaded.save_pretrained("second")
    again = kind.from_pretrained("second").state_dict()
    ratios = [(value / stored[name]).median().item() for name, value in changed.items()]
    twice = [(again[name] / stored[name]).median().item() for name in changed]
    with torch.no_grad():
        apart = (loaded(ids).logits - made(ids).logits).abs().max().item()
    print(f"transformers {transformers.__version__}, {kind.__name__}: {ratios}, then {twice}; logits {apart:.2f} apart")
    assert ratios == [0.5] * 4 and twice == [0.25] * 4 and apart > 0.01
PYTHON
