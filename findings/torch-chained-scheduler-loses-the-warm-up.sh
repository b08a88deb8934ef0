#!/usr/bin/env bash
# PyTorch's ChainedScheduler drops a warm-up before LambdaLR and nearly triples the rate behind it.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `ChainedScheduler` multiplies what its schedules do, so a warm-up and a decay
together end where the decay alone is. LambdaLR and CosineAnnealingWarmRestarts set the rate from
its first value instead: behind a warm-up they undo it from the first step on, and before one the
warm-up's ratio of this step to the last multiplies them: the second step has three times the
peak. ExponentialLR and CosineAnnealingLR multiply in either order. Nothing is said.
"""

import torch
from torch.optim import lr_scheduler


def warm_up(optimizer):
    return lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)


def rates(*kinds):
    """The learning rates of six steps of a peak of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = lr_scheduler.ChainedScheduler([kind(optimizer) for kind in kinds])
    found = []
    for _ in range(6):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


decays = {
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "LambdaLR of 0.9 to the step": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10),
}
print(f"torch {torch.__version__}, rates of a warm-up from 0.1 over 4 steps with a decay:")
for name, decay in decays.items():
    alone, behind, before = rates(decay), rates(warm_up, decay), rates(decay, warm_up)
    for words, row in (("alone", alone), ("behind the warm-up", behind), ("before it", before)):
        print(f"  {name} {words}: {', '.join(f'{rate:.3f}' for rate in row)}")
    wanted = [rate * min(1, 0.1 + 0.9 * step / 4) for step, rate in enumerate(alone)]
    product = [all(abs(got - one) < 1e-6 for got, one in zip(row, wanted)) for row in (behind, before)]
    if name in ("ExponentialLR", "CosineAnnealingLR"):
        assert product == [True, True]
    else:
        assert product == [False, False] and behind == alone and before[1] > 2.9
PYTHON
