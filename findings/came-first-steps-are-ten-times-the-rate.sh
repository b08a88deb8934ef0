#!/usr/bin/env bash
# The first step of CAME moves a matrix eleven times as far as its learning rate says, and a hundred steps on ten times too far.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check came-pytorch==0.1.3 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""came-pytorch 0.1.3, of the method's authors: CAME divides a matrix's step by the root of a mean of how unsteady steps are, whose decay is 0.9999. The mean begins at 0,
and nothing makes up for that, as Adam does: after the first step it is a ten-thousandth of what it stands for, and the step too long by the root. It takes
thousands of steps to pass, more than many a fine-tuning has. Vectors are not divided by it. A warm-up or a decay of 0.99 in `betas` makes it shorter.
"""

from importlib.metadata import version

import torch
from came_pytorch import CAME


def steps(optimizer_class, shape, counts, **options):
    weight = torch.nn.Parameter(torch.zeros(shape))
    optimizer = optimizer_class([weight], lr=1e-3, **options)
    generator, sizes = torch.Generator().manual_seed(0), []
    for count in range(1, max(counts) + 1):
        before = weight.detach().clone()
        weight.grad = torch.randn(shape, generator=generator)
        optimizer.step()
        if count in counts:
            sizes.append((weight.detach() - before).square().mean().sqrt().item() / 1e-3)
    return sizes


counts = (1, 100, 1000, 20000)
print(f"came-pytorch {version('came-pytorch')}, gradients at random, size of a step by the learning rate, for steps {counts}:")
expected = {
    ("CAME", (16, 16)): ((11, 11.2), (2, 3.5), (0.6, 1.2), (0.1, 0.4)),
    ("CAME", (256,)): ((0.09, 0.11), (0.15, 0.3), (0.15, 0.3), (0.15, 0.3)),
    ("AdamW", (16, 16)): ((0.99, 1.01), (0.15, 0.35), (0.15, 0.35), (0.15, 0.35)),
}
for (name, shape), bounds in expected.items():
    found = steps({"CAME": CAME, "AdamW": torch.optim.AdamW}[name], shape, counts)
    print(f"  {name}, shape {shape}: " + ", ".join(f"{size:.2f}" for size in found))
    assert all(least < size < most for size, (least, most) in zip(found, bounds, strict=True))
PYTHON
