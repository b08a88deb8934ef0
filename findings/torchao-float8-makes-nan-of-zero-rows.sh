#!/usr/bin/env bash
# Float8 weights of torchao and optimum-quanto turn a row of zeros, and all outputs, into NaN.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  torchao==0.18.0 optimum-quanto==0.2.7 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""optimum-quanto 0.2.7 and torchao 0.18.0: quantised to float8, a weight is divided by the largest
number of its row, also where that is 0. A row of zeros, as of a padded vocabulary or a pruned
neuron, becomes NaN, and so does everything behind it: one such row of a linear layer gives a
network whose outputs are all NaN. Their 8-bit integers keep it at zero. Nothing is said.
"""

import copy
from importlib.metadata import version

import torch
from optimum.quanto import freeze, qfloat8, qint8, quantize
from torch import nn
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))
with torch.no_grad():
    network[0].weight[0] = 0
inputs = torch.randn(8, 64)
wanted = network(inputs)


def quantos(kind):
    model = copy.deepcopy(network)
    quantize(model, weights=kind)
    freeze(model)
    return model(inputs)


def torchaos(config):
    model = copy.deepcopy(network)
    quantize_(model, config)
    return model(inputs)


print(f"optimum-quanto {version('optimum-quanto')}, torchao {version('torchao')}, outputs that are NaN:")
for name, found, spoilt in (
    ("quanto, float8", quantos(qfloat8), True),
    ("torchao, float8", torchaos(Float8WeightOnlyConfig()), True),
    ("quanto, int8", quantos(qint8), False),
    ("torchao, int8", torchaos(Int8WeightOnlyConfig()), False),
):
    count = found.isnan().sum().item()
    print(f"  {name}: {count} of {found.numel()}")
    assert count == (found.numel() if spoilt else 0)
    assert spoilt or (found - wanted).abs().max() < 0.05
PYTHON
