#!/usr/bin/env bash
# AdamW in 8 bits of torchao moves weights with small gradients six times as far as AdamW does.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchao 0.18.0 keeps the moments of AdamW8bit and AdamWFp8 in blocks of 256 neighbours with one scale. The mean of squares of a weight
whose gradient is a thousandth of its block's largest is a millionth there, and is kept as 0 or nearly; the mean of gradients is kept.
So every step divides by too little: such weights move about six times as far. With AdamW4bit they stand nearly still. Adam's point
is that the size of gradients does not matter, and nothing is said.
"""

import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8  # noqa: E402


def moved(optimizer_class, share):
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = optimizer_class([weight], lr=1e-3, weight_decay=0)
    for _ in range(100):
        weight.grad = torch.full((64, 64), share)
        weight.grad[:, 0] = 1
        optimizer.step()
    return -weight[1, 0].item(), -weight[1, 1].item()


print(f"torchao {version('torchao')}, after 100 steps of 0.001: a weight with a gradient of 1, its neighbour with a smaller one")
bounds = {torch.optim.AdamW: (0.099, 0.101), AdamW8bit: (0.5, 0.7), AdamWFp8: (0.5, 0.8), AdamW4bit: (0, 0.002)}
for optimizer_class, (least, most) in bounds.items():
    for share in (3e-4, 1e-4):
        large, small = moved(optimizer_class, share)
        print(f"  {optimizer_class.__name__}, gradient {share}: {large:.4f}, {small:.4f}")
        assert abs(large - 0.1) < 0.001 and least < small < most
PYTHON
