#!/usr/bin/env bash
# DeepSpeed's WarmupDecayLR trains all parameters at 0.001, whatever rates the optimizer has, which WarmupLR keeps.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 setuptools wheel ninja
DS_BUILD_OPS=0 "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
cd "$folder"
export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$folder/built" HF_HOME="$folder/home"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""deepspeed 0.19.8: without `warmup_max_lr` WarmupLR warms up to the rate of each parameter group, and
so does WarmupCosineLR. WarmupDecayLR, which is WarmupLR with a linear decay behind it, warms all groups
up to its default of 0.001: a fine-tuning with a rate of 1e-5 trains at a hundred times that, and
a group with a lower rate of its own has the same. One `warmup_max_lr` for both is the rate of all
groups, too. Nothing is said.
"""

from importlib.metadata import version

import torch
from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupDecayLR, WarmupLR


def highest(schedule, **settings):
    """The highest rate in a hundred steps of two parameter groups with the rates 1e-5 and 1e-6."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1e-5, 1e-6)]
    optimizer, rates = torch.optim.AdamW(groups), []
    scheduler = schedule(optimizer, warmup_num_steps=10, warmup_type="linear", **settings)
    for _ in range(100):
        rates.append([group["lr"] for group in optimizer.param_groups])
        scheduler.step()
    return [round(max(group), 8) for group in zip(*rates, strict=True)]


print(f"deepspeed {version('deepspeed')}, highest rates of groups that have 1e-05 and 1e-06:")
for schedule, settings, expected in (
    (WarmupLR, {}, [1e-5, 1e-6]),
    (WarmupCosineLR, {"total_num_steps": 100}, [1e-5, 1e-6]),
    (WarmupDecayLR, {"total_num_steps": 100}, [1e-3, 1e-3]),
    (WarmupDecayLR, {"total_num_steps": 100, "warmup_max_lr": 1e-5}, [1e-5, 1e-5]),
):
    found = highest(schedule, **settings)
    print(f"  {schedule.__name__} {settings}: {found}")
    assert [round(rate, 6) for rate in found] == expected
PYTHON
