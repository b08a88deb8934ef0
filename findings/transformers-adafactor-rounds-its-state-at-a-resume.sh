#!/usr/bin/env bash
# A resumed Adafactor of transformers continues with means of 8 bits.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.24.0: `Adafactor` keeps its means in float32 for bfloat16 weights, and saves them so. `load_state_dict`, which is torch
2.13.0's, casts what it reads to the type of the weight: the means lose 16 of their 24 bits, and in the next step are wide again. So a
resumed run is another run from its first step on. A state that is put back by hand, and float32 weights, continue exactly.
"""

import copy

import torch
import transformers
from transformers import Adafactor


def made(kind):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(64, 64).to(kind))
    return weight, Adafactor([weight], lr=1e-2, relative_step=False, scale_parameter=False, warmup_init=False)


def step(weight, optimizer, number):
    weight.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(number)).to(weight.dtype)
    optimizer.step()


def continued(kind, way):
    weight, optimizer = made(kind)
    for number in range(5):
        step(weight, optimizer, number)
    saved = copy.deepcopy(optimizer.state_dict())
    other, resumed = made(kind)
    other.data.copy_(weight.data)
    if way == "load_state_dict":
        resumed.load_state_dict(copy.deepcopy(saved))
    else:
        resumed.state[other] = copy.deepcopy(saved["state"][0])
    means = saved["state"][0]["exp_avg_sq_row"].dtype, resumed.state[other]["exp_avg_sq_row"].dtype
    for number in range(5, 10):
        step(weight, optimizer, number)
        step(other, resumed, number)
    return means, (weight != other).sum().item()


print(f"transformers {transformers.__version__}, torch {torch.__version__}, type of the means as they were saved, and as loaded;")
print("weights of 4,096 that differ five steps later:")
for kind in (torch.bfloat16, torch.float32):
    for way in ("load_state_dict", "by hand"):
        (saved, loaded), different = continued(kind, way)
        print(f"  {kind}, {way}: {saved}, {loaded}; {different}")
        exact = kind == torch.float32 or way == "by hand"
        assert saved == torch.float32 and (loaded == torch.float32) == exact and (different == 0) == exact
PYTHON
