#!/usr/bin/env bash
# In float16, torchao's 8-bit layers overflow to infinity where their outputs are about 50.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchao 0.18.0: a layer under `Int8DynamicActivationInt8WeightConfig` multiplies whole numbers, scales the sums by the inputs' scale in float32,
casts them to the inputs' type, and scales them by the weights' scale last. In between, numbers are those of the answer over the
weights' scale, some thousand times as large, and float16 ends at 65,504. A layer of 4,096 inputs that gives 48 in float16 has infinities;
its comment says that this is avoided. In bfloat16 all is well.
"""

import copy
import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_  # noqa: E402

print(f"torchao {version('torchao')}, 4,096 inputs, weights of standard deviation 0.02:")
for size, kind, broken in (
    (1, torch.float16, False),
    (10, torch.float16, True),
    (100, torch.float16, True),
    (100, torch.bfloat16, False),
):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4096, 64, bias=False)).to(kind)
    torch.nn.init.normal_(model[0].weight, std=0.02)
    inputs = (torch.randn(64, 4096) * size).to(kind)
    quantised = copy.deepcopy(model)
    quantize_(quantised, Int8DynamicActivationInt8WeightConfig())
    with torch.no_grad():
        before, after = model(inputs), quantised(inputs)
    infinite = 1 - after.isfinite().float().mean().item()
    print(f"  inputs of about {size}, {kind}: largest output {before.abs().max():.0f}, infinite in 8 bits {infinite:.1%}")
    assert before.isfinite().all() and before.abs().max() < 1000
    assert (infinite > 0) == broken
PYTHON
