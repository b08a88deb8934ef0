#!/usr/bin/env bash
# AdamW of bfloat16 weights takes small steps for ever after one large gradient.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: AdamW keeps its means in the type of the weights. 0.999 times a bfloat16 number rounds to that number, so the mean of
squares never falls: it is no mean of the last thousand steps, but what the largest gradient of the whole training left. A weight whose
first gradient was 100 and whose others are 1 moves at a third of the rate 20,000 steps later, where float32 is back at the whole rate
after 5,000. So it is with foreach, without it and fused. With a second factor of 0.99 the mean falls, but stays too high.
"""

import torch

ways = {"foreach": {"foreach": True}, "a loop": {"foreach": False}, "fused": {"fused": True}}


def last(dtype, steps, beta, **way):
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, beta), weight_decay=0.0, **way)
    for step in range(steps):
        weight.data.zero_()
        weight.grad = torch.full_like(weight, 100.0 if step == 0 else 1.0)
        optimizer.step()
    return -weight.item() / 0.01, optimizer.state[weight]["exp_avg_sq"].item()


print(f"torch {torch.__version__}, a gradient of 100 and then 1 at every step: the last step over the rate, and the mean of squares")
for name, way in ways.items():
    for steps in (5000, 20000):
        half, whole = last(torch.bfloat16, steps, 0.999, **way), last(torch.float32, steps, 0.999, **way)
        print(f"  {name}, {steps:,} steps: bfloat16 {half[0]:.2f} and {half[1]:.2f}, float32 {whole[0]:.2f} and {whole[1]:.2f}")
        assert half[1] == 10.0 and 0.31 < half[0] < 0.34
        assert whole[1] < 1.1 and 0.96 < whole[0] < 1.01
half, whole = last(torch.bfloat16, 5000, 0.99), last(torch.float32, 5000, 0.99)
print(f"  a factor of 0.99, 5,000 steps: bfloat16 {half[0]:.2f} and {half[1]:.2f}, float32 {whole[0]:.2f} and {whole[1]:.2f}")
assert half[1] > 1.2 > 1.01 > whole[1] > 0.99
PYTHON
