#!/usr/bin/env bash
# Weights that HQQ keeps in one bit come back further off than zeros would be.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check hqq==0.2.8.post1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""hqq 0.2.8.post1: `Quantizer` takes scale and zero point from the smallest and the largest number
of a group, and with 1 bit has these two alone: nearly all numbers lie far from both. What comes
back of normal weights in groups of 32 to 128 is further from them than zeros are, also behind its
own optimiser. The mean of each half of a group, also 1 bit and two numbers, is off by 0.6. With 2
bits and more HQQ gives what one would expect.
"""

from importlib.metadata import version

import torch
from hqq.core.quantize import Quantizer

torch.manual_seed(0)
weights = torch.randn(256, 512) * 0.02


def error(found):
    return ((found.view_as(weights) - weights).norm() / weights.norm()).item()


print(f"hqq {version('hqq')}, error beside the size of the weights, where zeros have 1:")
for bits, group in ((4, 64), (2, 64), (1, 128), (1, 64), (1, 32)):
    found = []
    for optimized in (True, False):
        packed, meta = Quantizer.quantize(
            weights, bits, group_size=group, axis=1, device="cpu", compute_dtype=torch.float32, optimize=optimized
        )
        found.append(error(Quantizer.dequantize(packed, meta)))
    print(f"  {bits} bits, groups of {group}: {found[0]:.3f}, not optimized {found[1]:.3f}")
    assert (min(found) > 1) == (bits == 1)
    if bits == 1:
        groups = weights.view(-1, group)
        middle = groups.mean(1, keepdim=True)
        halves = middle + torch.sign(groups - middle) * (groups - middle).abs().mean(1, keepdim=True)
        print(f"    by the mean of each half {error(halves):.3f}")
        assert error(halves) < 0.65
PYTHON
