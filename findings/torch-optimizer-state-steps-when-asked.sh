#!/usr/bin/env bash
# Asking for the state of an optimizer that has made no step yet changes its first step.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `get_optimizer_state_dict`, by which distributed checkpoints take an optimizer's state, makes a step with gradients of zero and a
learning rate of zero where there is no state yet, and leaves its traces behind. So a run that also saves before its first step
trains otherwise: AdamW, which counts that step for its bias correction, makes a first step of 0.74 of its size; momentum with
dampening and NAdam change too.
"""

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

makers = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0),
    "SGD, momentum, dampening": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, dampening=0.5),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.1),
    "SGD, momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
}


def moved(make, asked):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = make(model.parameters())
    if asked:
        get_optimizer_state_dict(model, optimizer)
    before = model.weight.detach().clone()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    return (model.weight - before).norm().item(), [int(state["step"]) for state in optimizer.state.values() if "step" in state]


print(f"torch {torch.__version__}, size of the first step, and what it counts as:")
for name, make in makers.items():
    plain, asked = moved(make, asked=False), moved(make, asked=True)
    print(f"  {name}: {plain[0]:.4f}, {plain[1]}; where the state was asked for before: {asked[0]:.4f}, {asked[1]}")
    assert (abs(plain[0] - asked[0]) < 1e-6) == (name == "SGD, momentum")
    assert name != "AdamW" or 0.74 < asked[0] / plain[0] < 0.75
PYTHON
