#!/usr/bin/env bash
# PyTorch's Adafactor hardly trains weights in bfloat16, whose gradients it takes to be too small.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: where no `eps` is given, Adafactor takes the distance between 1 and the next number of the weights' type as the least size of a
gradient. That is 0.0078 in bfloat16, and a fine-tuned model's gradients are far below it: they are divided by 0.0078 and not by their
own size, and weights move a thousandth of what they move in float32. transformers' Adafactor, and the paper, have 1e-30. `eps=(1e-30, 1e-3)`
mends it.
"""

import torch
from transformers.optimization import Adafactor


def moved(kind, size, build):
    weight = torch.nn.Parameter((torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 0.02).to(kind))
    first = weight.detach().float().clone()
    optimizer = build([weight])
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        weight.grad = (torch.randn(64, 64, generator=generator).abs() * size).to(kind)
        optimizer.step()
    return (weight.detach().float() - first).square().mean().sqrt().item()


print(f"torch {torch.__version__}, how far weights move in ten steps of 0.01, for gradients of about 1, 1e-3, 1e-4 and 1e-5:")
optimizers = {
    "torch": lambda weights: torch.optim.Adafactor(weights, lr=1e-2),
    "torch, eps=(1e-30, 1e-3)": lambda weights: torch.optim.Adafactor(weights, lr=1e-2, eps=(1e-30, 1e-3)),
    "transformers": lambda weights: Adafactor(weights, lr=1e-2, relative_step=False, scale_parameter=True),
}
for name, build in optimizers.items():
    for kind in (torch.float32, torch.bfloat16):
        found = [moved(kind, size, build) for size in (1, 1e-3, 1e-4, 1e-5)]
        print(f"  {name}, {kind}: " + ", ".join(f"{distance:.1e}" for distance in found))
        if name == "torch" and kind == torch.bfloat16:
            assert found[1] < found[0] / 5 and found[2] < found[0] / 200 and found[3] < found[0] / 2000
        else:
            assert max(found) < min(found) * 1.1
PYTHON
