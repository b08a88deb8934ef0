#!/usr/bin/env bash
# heavyball's schedule-free AdamW makes every weight NaN where a warm-up begins at a rate of 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check heavyball==3.2.1 schedulefree==1.4.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""heavyball 3.2.1: SFAdamW averages its weights by the rates of the steps so far. At a first step with a rate of 0, with which the warm-ups of
transformers and a plain LambdaLR begin, that is 0 over 0. The code expects Python's error and gets a tensor, so the mean is NaN, and
from there all weights are, though the step should move nothing. schedulefree's own AdamW takes it; so does `warmup_steps`, which begins at one step's rate.
"""

import logging
import warnings
from importlib.metadata import version

import torch

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

import heavyball  # noqa: E402
import schedulefree  # noqa: E402

heavyball.utils.compile_mode = None


def trained(build, warm_up):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    optimizer = build(layer.parameters())
    if hasattr(optimizer, "train"):
        optimizer.train()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
    for _ in range(5):
        optimizer.zero_grad()
        layer(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        schedule.step()
    return layer.weight.detach().norm().item()


print(f"heavyball {version('heavyball')}, schedulefree {version('schedulefree')}, norm of the weights after five steps:")
schedules = {"0, 1/4, 2/4": lambda step: min(step / 4, 1), "1/4, 2/4": lambda step: min((step + 1) / 4, 1)}
for name, build in (
    ("heavyball.SFAdamW", lambda weights: heavyball.SFAdamW(weights, lr=1e-3)),
    ("heavyball.AdamW", lambda weights: heavyball.AdamW(weights, lr=1e-3)),
    ("schedulefree.AdamWScheduleFree", lambda weights: schedulefree.AdamWScheduleFree(weights, lr=1e-3)),
):
    for begins, warm_up in schedules.items():
        norm = trained(build, warm_up)
        print(f"  {name}, rates that begin with {begins}: {norm:.3f}")
        assert (norm != norm) == (name == "heavyball.SFAdamW" and begins.startswith("0"))
PYTHON
