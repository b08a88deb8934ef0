#!/usr/bin/env bash
# DeepSpeed's warm-up is at half its rate after the root of its steps, and trains nothing in the first two.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 setuptools wheel ninja
DS_BUILD_OPS=0 "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$folder/built" "$folder/venv/bin/python" - <<'PYTHON'
"""deepspeed 0.19.8: `WarmupLR`, `WarmupDecayLR` and `WarmupCosineLR` raise the rate by the logarithm of the step unless `warmup_type` is "linear":
of 100 warm-up steps, the eleventh has half of the rate and the 51st 85%, where other libraries' warm-ups have a tenth and a half. Of
both kinds the first two steps have a rate of 0, so that a job of two steps trains nothing.
"""

from importlib.metadata import version

import torch
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupDecayLR, WarmupLR

steps = 100
common = {"warmup_min_lr": 0.0, "warmup_max_lr": 1.0, "warmup_num_steps": steps}
makers = {
    "WarmupLR": (WarmupLR, common),
    "WarmupDecayLR": (WarmupDecayLR, {"total_num_steps": 200, **common}),
    "WarmupCosineLR": (WarmupCosineLR, {"total_num_steps": 200, "warmup_num_steps": steps}),
    "WarmupLR, linear": (WarmupLR, {"warmup_type": "linear", **common}),
}


def rates(maker, settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler, found = maker(optimizer, **settings), []
    for _ in range(steps + 2):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


print(f"deepspeed {version('deepspeed')}, rates of steps 1, 2, 3, 11, 51 and 101 of a warm-up of {steps}:")
for name, (maker, settings) in makers.items():
    found = rates(maker, settings)
    print(f"  {name}: " + ", ".join(f"{found[step - 1]:.3f}" for step in (1, 2, 3, 11, 51, 101)))
    assert found[0] == found[1] == 0 and abs(found[steps] - 1) < 0.011
    wanted = (0.09, 0.49) if "linear" in name else (0.5, 0.849)
    assert abs(found[10] - wanted[0]) < 0.01 and abs(found[50] - wanted[1]) < 0.01
PYTHON
