#!/usr/bin/env bash
# In the second step of heavyball's ADOPT a single weight moves thousands of times as far as the learning rate.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check heavyball==3.2.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""heavyball 3.2.1: ADOPT divides a gradient by the size of those before it, and moves nothing in its first step, which is to measure them. A weight whose first gradient
happens to be near zero is then divided by next to nothing: of 65,536 weights with gradients at random, one goes 100 in one step of 0.01, and the larger a model
the farther. Adam, whose step has the own gradient in its divisor, cannot. Nothing is clipped, and nothing is said.
"""

import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

import heavyball  # noqa: E402

heavyball.utils.compile_mode = None


def farthest(optimizer_class, count):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(count))
    optimizer = optimizer_class([weight], lr=1e-2)
    found = []
    for _ in range(5):
        before = weight.detach().clone()
        weight.grad = torch.randn(count) * 1e-3
        optimizer.step()
        found.append((weight.detach() - before).abs().max().item())
    return found


print(f"heavyball {version('heavyball')}, the farthest that one weight goes in each of five steps of 0.01:")
for count, least in ((64, 0.2), (4096, 10), (65536, 50)):
    for optimizer_class in (heavyball.ADOPT, heavyball.AdamW):
        found = farthest(optimizer_class, count)
        print(f"  {count:,} weights, {optimizer_class.__name__}: " + ", ".join(f"{far:.3g}" for far in found))
        if optimizer_class is heavyball.ADOPT:
            assert found[0] == 0 and found[1] > least
        else:
            assert max(found) < 0.011
PYTHON
