#!/usr/bin/env bash
# PyTorch's OneCycleLR replaces the first beta of AdamW at every step, whatever was asked for.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: a scheduler of learning rates that also sets the optimizer's betas. OneCycleLR writes 0.95 into the first beta of Adam and AdamW as it is
made and moves it to 0.85 and back, where 0.9 or 0.8 was asked for; what was asked for is in no place of the state any more. The second beta stays.
cycle_momentum=False leaves both alone, as CosineAnnealingLR and LambdaLR always do.
"""

import torch

schedulers = torch.optim.lr_scheduler
print(f"torch {torch.__version__}, AdamW with betas 0.8 and 0.99, over 100 steps:")
for name, make in {
    "OneCycleLR": lambda it: schedulers.OneCycleLR(it, max_lr=0.01, total_steps=100),
    "OneCycleLR, cycle_momentum=False": lambda it: schedulers.OneCycleLR(it, max_lr=0.01, total_steps=100, cycle_momentum=False),
    "CosineAnnealingLR": lambda it: schedulers.CosineAnnealingLR(it, 100),
}.items():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.01, betas=(0.8, 0.99))
    schedule, betas = make(optimizer), []
    for _ in range(99):
        betas.append(optimizer.param_groups[0]["betas"])
        optimizer.step()
        schedule.step()
    firsts, seconds = zip(*betas, strict=True)
    print(f"  {name}: first beta {firsts[0]:.2f}, at least {min(firsts):.2f}, at the end {firsts[-1]:.2f}; second {set(seconds)}")
    assert set(seconds) == {0.99}
    if name == "OneCycleLR":
        assert firsts[0] == 0.95 and abs(min(firsts) - 0.85) < 0.001 and 0.8 not in firsts
        assert "0.8," not in str(optimizer.state_dict()["param_groups"])
    else:
        assert set(firsts) == {0.8}
PYTHON
