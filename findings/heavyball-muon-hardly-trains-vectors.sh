#!/usr/bin/env bash
# heavyball's Muon moves norms and biases by their bare gradients, which is next to nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check heavyball==3.2.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""heavyball 3.2.1: Muon makes the steps of matrices orthogonal, and takes vectors too. Those it moves by plain momentum at the same rate: with a gradient of
about 1e-4, as in fine-tuning, a norm's weight goes a hundred-thousandth where Adam goes a tenth, and a gradient of 100 throws it out. Nothing is
said; torch's Muon refuses vectors. MuonAdamW, beside it, is what is meant.
"""

import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

import heavyball  # noqa: E402

heavyball.utils.compile_mode = None


def moved(optimizer_class, shape, size):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    optimizer = optimizer_class([weight], lr=1e-2)
    for _ in range(10):
        weight.grad = torch.rand(shape) * size
        optimizer.step()
    return weight.detach().square().mean().sqrt().item()


sizes = (1e-4, 1, 100)
print(f"heavyball {version('heavyball')}, how far ten steps of 0.01 move weights with gradients of about {sizes}:")
for optimizer_class, shape in (
    (heavyball.Muon, (64, 64)),
    (heavyball.Muon, (64,)),
    (heavyball.MuonAdamW, (64,)),
    (heavyball.AdamW, (64,)),
):
    found = [moved(optimizer_class, shape, size) for size in sizes]
    print(f"  {optimizer_class.__name__}, shape {shape}: " + ", ".join(f"{distance:.1e}" for distance in found))
    if optimizer_class is heavyball.Muon and len(shape) == 1:
        assert found[0] < 2e-5 and abs(found[1] / found[0] - 1e4) < 100 and found[2] > 5
    else:
        assert max(found) < min(found) * 1.1 < 0.2
try:
    torch.optim.Muon([torch.nn.Parameter(torch.zeros(64))])
    raise SystemExit("torch's Muon takes vectors")
except ValueError as error:
    print(f"  torch.optim.Muon: {error}")
PYTHON
