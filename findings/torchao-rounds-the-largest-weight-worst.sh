#!/usr/bin/env bash
# In 4 bits torchao and compressed-tensors round the largest weight of each group worst: 1 comes back as 0.93.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 torchao==0.18.0 \
  compressed-tensors==0.20.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""torchao 0.18.0 (`IntxWeightOnlyConfig`) and compressed-tensors 0.20.1 (symmetric "int", the
format of llm-compressor) take a group's largest weight over half the range as its scale, which is
7.5 in 4 bits. That weight then lies in the middle between two numbers, the worst place there is: of
1, a positive one comes back as 0.933, and a negative one as -0.933 or -1.067; in 2 bits as 0.667.
Outliers, which these groups are made for, always have half a step of error; by a scale of the
largest over 7 they would have none. Floating-point formats of compressed-tensors keep them.
"""

from importlib.metadata import version

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from torchao.quantization import IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerGroup

torch.manual_seed(0)
weights = torch.randn(64, 128) / 100
weights[:, 0] = torch.linspace(0.1, 1.0, 64)
largest = weights[:, 0].clone()
versions = f"torchao {version('torchao')}, compressed-tensors {version('compressed-tensors')}"
print(f"{versions}, what is left of the largest weight of a group:")
for bits in (8, 4, 2):
    layer = torch.nn.Linear(128, 64, bias=False)
    layer.weight.data = weights.clone()
    quantize_(layer, IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=PerGroup(128)))
    asked = QuantizationArgs(num_bits=bits, type="int", symmetric=True, strategy="channel")
    scales = calculate_qparams(weights.amin(1, keepdim=True), weights.amax(1, keepdim=True), asked)
    found = [kept[:, 0] / largest for kept in (layer.weight.dequantize(), fake_quantize(weights, *scales, asked))]
    print(f"  {bits} bits: {found[0].mean():.4f}, {found[1].mean():.4f}")
    assert all((kept - (1 - 1 / (2**bits - 1))).abs().max() < 1e-5 for kept in found)
PYTHON
