#!/usr/bin/env bash
# One unlikely token makes the perplexity of torchmetrics infinite where logits are in float16.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchmetrics 1.9.0: Perplexity takes the logarithm of a softmax that it has written out in the type of the logits. In float16 what is
less probable than about e^-17 is 0 there: one such token makes the perplexity of a whole set infinite. PyTorch's cross entropy of the
same logits, which never writes probabilities, is right to three digits. In float32 the two agree.
"""

from importlib.metadata import version

import torch
from torchmetrics.text import Perplexity

torch.manual_seed(0)
logits, targets = torch.randn(4, 250, 100), torch.randint(0, 100, (4, 250))
logits[0, 0, targets[0, 0]] = -16
print(f"torchmetrics {version('torchmetrics')}, perplexity of 1,000 tokens, by torchmetrics and by cross_entropy:")
found = {}
for dtype in (torch.float32, torch.float16):
    metric = Perplexity()
    for row in range(4):
        metric.update(logits[row : row + 1].to(dtype), targets[row : row + 1])
    loss = torch.nn.functional.cross_entropy(logits.to(dtype).flatten(0, 1), targets.flatten())
    found[dtype] = metric.compute().item(), loss.float().exp().item()
    print(f"  {dtype}: {found[dtype][0]:.3f}, {found[dtype][1]:.3f}")
exact = found[torch.float32][1]
assert abs(found[torch.float32][0] / exact - 1) < 1e-5
assert found[torch.float16][0] == float("inf") and abs(found[torch.float16][1] / exact - 1) < 5e-3
PYTHON
