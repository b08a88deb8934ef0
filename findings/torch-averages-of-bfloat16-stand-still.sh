#!/usr/bin/env bash
# A moving average of bfloat16 weights in PyTorch stays at the weights it began with.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `AveragedModel` keeps its average in the type of the weights. With a decay of 0.999 a bfloat16 weight would have to differ
from the average by more than twice its size to move it at all: weights that go from 1 to 2 and stay there leave their average at 1
for ever. The plain average of SWA stops moving after some 250 updates. Nothing is said; weights in float32 come out right.
"""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn


def averaged(kind, updates, **settings):
    model = torch.nn.Linear(1, 1, bias=False).to(kind)
    torch.nn.init.constant_(model.weight, 1.0)
    average = AveragedModel(model, **settings)
    average.update_parameters(model)
    torch.nn.init.constant_(model.weight, 2.0)
    for _ in range(updates):
        average.update_parameters(model)
    return average.module.weight.item()


ways = {
    "moving, 0.999": {"multi_avg_fn": get_ema_multi_avg_fn(0.999)},
    "moving, one by one": {"avg_fn": get_ema_avg_fn(0.999)},
    "SWA": {},
}
print(f"torch {torch.__version__}, average of a weight that was 1 and is 2, after 5,000 updates in float32, bfloat16:")
for name, settings in ways.items():
    wide, narrow = (averaged(kind, 5_000, **settings) for kind in (torch.float32, torch.bfloat16))
    print(f"  {name}: {wide:.4f}, {narrow:.4f}")
    assert wide > 1.99 and narrow == (1.9375 if name == "SWA" else 1.0)
    assert name != "SWA" or narrow == averaged(torch.bfloat16, 250)
PYTHON
