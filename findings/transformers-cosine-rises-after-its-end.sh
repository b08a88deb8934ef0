#!/usr/bin/env bash
# The cosine schedules of transformers and PyTorch rise again to the whole rate after their last step.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""transformers 5.24.0 and torch 2.13.0: a schedule that is told too few steps, as where batches are counted wrongly or a training goes on longer, is
at its lowest rate where they end and should stay there. The cosine and the cosine with a minimum go on along the curve: after
twice the steps the rate is the whole one again, and a model that was trained down is shaken up. Linear, polynomial and
hard restarts, of transformers, stay at their end. PyTorch's CosineAnnealingLR rises as well, and its LinearLR stays.
"""

import torch
import transformers

parts = {
    "cosine": lambda it: transformers.get_cosine_schedule_with_warmup(it, 0, 10),
    "cosine_with_min_lr": lambda it: transformers.get_scheduler(
        "cosine_with_min_lr", it, num_warmup_steps=0, num_training_steps=10, scheduler_specific_kwargs={"min_lr_rate": 0.1}
    ),
    "cosine_with_restarts": lambda it: transformers.get_cosine_with_hard_restarts_schedule_with_warmup(it, 0, 10),
    "linear": lambda it: transformers.get_linear_schedule_with_warmup(it, 0, 10),
    "polynomial": lambda it: transformers.get_polynomial_decay_schedule_with_warmup(it, 0, 10, lr_end=0.1),
    "torch's CosineAnnealingLR": lambda it: torch.optim.lr_scheduler.CosineAnnealingLR(it, 10),
    "torch's LinearLR": lambda it: torch.optim.lr_scheduler.LinearLR(it, 1.0, 0.0, 10),
}
print(f"transformers {transformers.__version__}, torch {torch.__version__}, schedules of 10 steps: rates at 0, 10, 15 and 20")
for name, part in parts.items():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = part(optimizer), []
    for _ in range(21):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    print(f"  {name}: " + ", ".join(f"{rates[step]:.2f}" for step in (0, 10, 15, 20)))
    assert rates[0] == 1 and rates[10] < 0.11
    if name in ("cosine", "cosine_with_min_lr", "torch's CosineAnnealingLR"):
        assert rates[15] > 0.49 and rates[20] > 0.99
    else:
        assert abs(rates[20] - rates[10]) < 1e-9
PYTHON
