#!/usr/bin/env bash
# In float16, rows of small weights become zero in 8 bits of torchao (IntxWeightOnlyConfig).
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchao 0.18.0: under `IntxWeightOnlyConfig` the scale of a row of weights is never below the distance between 1 and the next number of
their type, 0.00098 in float16, whatever the weights are. A row whose largest is 0.001 then has three values left of 255, and one below 0.0005 is
zero throughout. `Int8WeightOnlyConfig`, of the same width, keeps such rows, and so does IntxWeightOnlyConfig in float32. Nothing is said.
"""

import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_  # noqa: E402


def error(config, kind, size):
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False)).to(kind)
    weight = (torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) * size).to(kind)
    model[0].weight.data.copy_(weight)
    quantize_(model, config)
    kept = model[0].weight.dequantize().double()
    return ((kept - weight.double()).norm() / weight.double().norm()).item()


print(f"torchao {version('torchao')}, relative error of weights of standard deviation 1, 1e-3, 1e-4 and 1e-5:")
eight, intx = Int8WeightOnlyConfig(), IntxWeightOnlyConfig(weight_dtype=torch.int8)
for config, kind, bounds in (
    (eight, torch.float16, (0.01, 0.01, 0.01, 0.03)),
    (intx, torch.float32, (0.01, 0.01, 0.01, 0.01)),
    (intx, torch.float16, (0.01, None, None, None)),
):
    found = [error(config, kind, size) for size in (1, 1e-3, 1e-4, 1e-5)]
    print(f"  {type(config).__name__}, {kind}: " + ", ".join(f"{part:.1%}" for part in found))
    for part, bound in zip(found, bounds, strict=True):
        assert bound is None or part < bound
assert 0.1 < found[2] < 0.3 and found[3] > 0.9
PYTHON
