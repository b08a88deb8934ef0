#!/usr/bin/env bash
# Adam of bitsandbytes takes weight decay off the weights, as AdamW, where PyTorch's adds it to gradients.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 bitsandbytes==0.50.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""bitsandbytes 0.50.2: `bnb.optim.Adam(weight_decay=...)` is another optimizer than `torch.optim.Adam`, which it stands in for: its
weight decay does not go through the moments, and so each weight shrinks by lr * weight_decay, as in AdamW. Adam and AdamW of
bitsandbytes give equal weights to the last bit. Its SGD, RMSprop and Adagrad add the decay to the gradients, as PyTorch's do.
"""

from importlib.metadata import version

import bitsandbytes
import torch


def trained(kind, **settings):
    """A tensor of ones after 100 steps along noisy gradients."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.nn.Parameter(torch.ones(64, 128))
    optimizer = kind([weights], lr=1e-2, weight_decay=0.1, **settings)
    for _ in range(100):
        weights.grad = torch.randn(64, 128, generator=generator) + 1
        optimizer.step()
    return weights.detach()


ours, theirs = bitsandbytes.optim, torch.optim
print(f"bitsandbytes {version('bitsandbytes')}, a weight of 1 after 100 steps, and largest difference between any two:")
rows = [(ours.Adam, theirs.Adam, {}), (ours.Adam, theirs.AdamW, {}), (ours.Adam, ours.AdamW, {}), (ours.SGD, theirs.SGD, {"momentum": 0.9})]
found = []
for first, second, settings in rows:
    one, two = trained(first, **settings), trained(second, **settings)
    found.append((one - two).abs().max().item())
    names = [f"{kind.__module__.split('.')[0]}.{kind.__name__} {value.mean():.4f}" for kind, value in ((first, one), (second, two))]
    print(f"  {names[0]}, {names[1]}: {found[-1]:.1e}")
adam, adamw, own, sgd = found
assert adam > 0.01 and adamw < 1e-5 and own == 0 and sgd < 1e-5
PYTHON
